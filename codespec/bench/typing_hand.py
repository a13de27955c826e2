"""Somebody who types: a text as keys, each with the seconds that pass before it.

A fixed model, drawn from a seed. The time between two keys has the mean and the relative spread that Dhakal, Feit,
Kristensson and Oulasvirta found for 168,000 people ("Observations on Typing from 136 Million Keystrokes", CHI 2018,
table 3: 238.66 ms, 111.60 ms; 51.56 words a minute). They copied English sentences, and the spread is that between
people, here that between one person's keys; such times are skewed, so they are log-normal. Ours are the rest: signs
and first letters of words take longer than what follows in a word; there is a pause before most lines and now and
then before a word, so that keys come in bursts (Shrestha and others, "Pausing While Programming", ICSE 2022, call
pauses of 2 to 15 s thinking about the code at hand; a pause is cut at 4 s here, when every answer has long been
there). Nobody mistypes.
Knows characters; knows no editor and no clock.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

MEAN, SPREAD = 0.239, 0.112 / 0.239  # seconds; the standard deviation as a share of the mean
IN_WORD, WORD, SIGN = 0.8, 1.1, 1.4  # how long a kind of key takes beside the others
LINE_PAUSE, WORD_PAUSE, PAUSE_SIGMA = 1.1, 1.6, 0.7  # medians in seconds
WORD_PAUSES = 0.06  # of words
MOST_PAUSE = 4.0
_KEYS = re.compile(r"\n[ \t]*|.", re.DOTALL)  # an editor indents by itself


@dataclass(frozen=True, slots=True)
class Key:
    """What one key puts in, behind so many characters of the text, and the seconds since the key before."""

    start: int
    text: str
    wait: float

    @property
    def end(self) -> int:
        """Characters of the text that are there with it."""
        return self.start + len(self.text)


def strike(text: str, seed: int, pace: float = 1.0) -> list[Key]:
    """The keys of a text; `pace` 2 is twice as fast."""
    luck = random.Random(seed)
    found = [(match.start(), match.group()) for match in _KEYS.finditer(text)]
    efforts = [_effort(text[start - 1 : start], key) for start, key in found]
    usual = MEAN / (sum(efforts) / len(efforts)) if efforts else 0.0
    keys = []
    for (start, key), effort in zip(found, efforts, strict=True):
        wait = usual * effort * _skewed(luck) + _pause(luck, text[:start], key)
        keys.append(Key(start, key, wait / pace))
    return keys


def _effort(before: str, key: str) -> float:
    if not key.isalnum() and key != " ":
        return SIGN
    return IN_WORD if before.isalnum() and key.isalnum() else WORD


def _skewed(luck: random.Random) -> float:
    """A number of mean 1 and the published spread."""
    sigma = math.sqrt(math.log(1 + SPREAD**2))
    return luck.lognormvariate(-(sigma**2) / 2, sigma)


def _pause(luck: random.Random, before: str, key: str) -> float:
    """Seconds of thinking before a key. Takes as much luck whatever it is, so that texts differ only where they do."""
    chance, length = luck.random(), luck.lognormvariate(0.0, PAUSE_SIGMA)
    if not before or before.rstrip(" \t").endswith("\n"):
        return min(MOST_PAUSE, LINE_PAUSE * length) if key.strip() else 0.0
    if chance < WORD_PAUSES and key.isalnum() and not before[-1:].isalnum():
        return min(MOST_PAUSE, WORD_PAUSE * length)
    return 0.0
