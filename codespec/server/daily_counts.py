"""Keep the tokens that each key has used today over a restart, in one small file for each keys file.

Written when they change, at most every SAVE_SECONDS and at the daemon's end, so a killed daemon forgets at most that
much. Daemons that share a keys file, as replicas do, count apart; the one that saves last decides what a new one reads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codespec.json_store import Kept, digest
from codespec.keys_file import MOST_KEYS
from codespec.server.accounts import DAY, Keyring
from codespec.user_folders import state_folder

SAVE_SECONDS = 5.0
Tokens = Mapping[str, int]  # of a day, by the hash of a key


class DailyCounts:
    """The counts of a keyring's accounts in their file. `fault` is a sentence if it can't be written, or ""."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        again, each = "today's tokens count from zero", "a restart forgets them"
        self._file = Kept(usage_file(keyring.file), "usage by key", parse, spell, again, each)
        self._notes: list[str] = []
        self._saved: tuple[int, Tokens] = (0, {})
        self._next = 0.0

    @property
    def fault(self) -> str:
        """A sentence about the file, or ""."""
        return f"{self._notes[-1][:1].upper()}{self._notes[-1][1:]}." if self._notes else ""

    def load(self) -> None:
        """Give each account the tokens that it has used today."""
        day, tokens = self._file.load(self._notes) or (0, {})
        for account in self._keyring.accounts:
            account.resume(day, tokens.get(account.key.sha256, 0))

    def save(self, *, at_once: bool = False) -> None:
        """Write the file if a count has changed and it is time."""
        now = time.monotonic()
        if now < self._next and not at_once:
            return
        self._next = now + SAVE_SECONDS
        day = int(time.time() // DAY)
        counts = {account.key.sha256: account.tokens_on(day) for account in self._keyring.accounts}
        content = (day, {sha256: count for sha256, count in counts.items() if sha256 and count})
        if content != self._saved and (content[1] or self._saved[1]):
            self._saved = content
            self._notes.clear()
            self._file.save(content, self._notes)


def spell(counts: tuple[int, Tokens]) -> Mapping[str, Any]:
    """Return the content of the file."""
    day, tokens = counts
    return {"day": day, "tokens": dict(tokens)}


def parse(values: Mapping[str, Any]) -> tuple[int, Tokens]:
    """Return the counts of a file. Raises ValueError for content that `spell` never returns."""
    day, tokens = values["day"], values["tokens"]
    if type(day) is not int or not isinstance(tokens, dict) or len(tokens) > MOST_KEYS:
        raise ValueError("not a day's counts")
    if not all(type(count) is int and count > 0 for count in tokens.values()):
        raise ValueError("a count is no positive number")
    return day, tokens


def usage_file(keys: Path) -> Path:
    """Return the file that belongs to a keys file."""
    return state_folder() / f"key-usage-{digest(str(keys.absolute()))}.json"
