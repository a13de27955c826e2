"""A client's prediction as a draft: it follows the text, resynchronizes after edits, and costs little if wrong."""

from __future__ import annotations

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.limits import MAX_PREDICTION
from codespec.backends.language_model import common_prefix
from codespec.proposers.base import NOTHING
from codespec.proposers.lookup import (
    _WORD,
    ADDED,
    FAR,
    LEFT_OUT,
    MAX_SCOPES,
    MOVED,
    SURE,
    Alignment,
    PredictionProposer,
    Trace,
)
from codespec.sequence import Cap, Draft, Sequence
from tests.processor_time import least
from tests.proposers.test_lookup import sequence_of

OLD = """def total(prices, rate):
    result = 0
    for price in prices:
        if price < 0:
            raise ValueError("a price is below zero")
        result += price * (1 + rate)
    return round(result, 2)


def show(prices):
    for number, price in enumerate(prices, 1):
        print(f"{number:3} {price:10.2f}")
"""


def draft(proposer: PredictionProposer, sequence: Sequence, tokens: int = 8, confidence: float = 0.0) -> Draft:
    return proposer.propose([sequence], [Cap(tokens, confidence)])[0]


def write(prediction: str, text: str, piece: int = 3, tokens: int = 8) -> tuple[int, list[Draft]]:
    """Write a text in rounds; return their number and the drafts.

    The correct part of a draft is accepted, and `piece` bytes follow.
    """
    proposer, sequence, data = PredictionProposer(), sequence_of("", prediction=prediction), text.encode()
    drafts = []
    while len(sequence.generated) < len(data):
        drafts.append(draft(proposer, sequence, tokens))
        done = len(sequence.generated)
        right = common_prefix(drafts[-1].text, data[done:])
        sequence.generated += data[done : done + right + piece]
    return len(drafts), drafts


def test_it_goes_on_where_the_text_stands() -> None:
    proposer, sequence = PredictionProposer(), sequence_of("# prices\n", prediction=OLD)
    first = draft(proposer, sequence)
    assert OLD.encode().startswith(first.text) and len(first.text) >= 16
    assert (first.source, first.ends, len(first.confidences)) == ("prediction", (len(first.text),), 1)
    sequence.generated += first.text
    assert OLD.encode().startswith(first.text + draft(proposer, sequence).text)


def test_without_a_prediction_nothing_is_kept() -> None:
    proposer = PredictionProposer()
    assert draft(proposer, sequence_of("x = 1\n")) is NOTHING
    assert not proposer._traces


def test_what_was_kept_goes_with_the_sequence() -> None:
    proposer, sequence = PredictionProposer(), sequence_of("", prediction=OLD)
    draft(proposer, sequence)
    assert list(proposer._traces) == [sequence]
    proposer.release(sequence, "stop")
    proposer.release(sequence_of("another"), "stop")
    assert not proposer._traces


def test_held_bytes_come_first() -> None:
    """The prediction begins at the cursor; the bytes backed up by healing are written before it."""
    proposer, sequence = PredictionProposer(), sequence_of("", held="ret", prediction="urn 1\n")
    assert draft(proposer, sequence).text == b"return 1\n"
    sequence.generated += b"return"
    assert draft(proposer, sequence).text == b" 1\n"


def test_at_its_end_it_has_no_more_to_say() -> None:
    proposer, sequence = PredictionProposer(), sequence_of("", "x = 1\n", prediction="x = 1\n")
    assert draft(proposer, sequence) is NOTHING


EDITS = {
    "nothing": (OLD, 0),
    "a line more": (OLD.replace("    for price", "    tax = rate / 100\n    for price", 1), 8),
    "a line less": (OLD.replace("        if price < 0:\n", "", 1), 5),
    "three lines less": (OLD.replace(OLD[OLD.index("        if") : OLD.index("        result +=")], ""), 5),
    "another name": (OLD.replace("rate)", "tax_rate)"), 8),
    "another number": (OLD.replace("round(result, 2)", "round(result, 4)"), 4),
    "another beginning": ("# Prices and their sum.\n" + OLD, 12),
    "moved": (OLD[OLD.index("def show") :] + "\n\n" + OLD[: OLD.index("\n\ndef show")], 14),
}


@pytest.mark.parametrize("name", EDITS)
def test_behind_an_edit_the_match_goes_on(name: str) -> None:
    text, more = EDITS[name]
    fewest, _ = write(OLD, OLD)
    rounds, drafts = write(OLD, text)
    assert fewest < 25 < len(OLD) / 6
    assert rounds <= fewest + more, [each.text for each in drafts]


@given(st.data())
def test_any_few_edits_of_any_text(data: st.DataObject) -> None:
    """After any deletion or insertion, the rest is drafted again."""
    dice = random.Random(data.draw(st.integers(0, 2**32)))
    lines = [f"{dice.choice('abcdef')}{n} = {dice.random():.6f}\n" for n in range(40)]
    place = dice.randrange(5, 30)
    changed = list(lines)
    if dice.random() < 0.5:
        del changed[place : place + dice.randrange(1, 4)]
    else:
        changed.insert(place, f"print({dice.random()})\n")
    rounds, _ = write("".join(lines), "".join(changed))
    assert rounds <= write("".join(lines), "".join(lines))[0] + 14


def test_a_wrong_place_makes_the_next_one_dearer() -> None:
    trace = Trace(b"".join(b"self.value%d = 1\n" % n for n in range(300)))
    written, guesses = bytearray(), 0
    for number in range(300):
        written += b"self.value"
        trace.follow(written, 0)
        guesses += trace.at >= 0
        written += b"x%d" % number
        trace.follow(written, 0)
    assert trace.misses <= 7 and guesses <= 8
    assert trace.confidence < 0.2


def test_confidence_follows_what_was_right() -> None:
    trace = Trace(OLD.encode())
    first = trace.confidence
    trace.follow(bytearray(OLD[:200].encode()), 0)
    assert 0.8 < first < 0.95 < trace.confidence
    unsure = PredictionProposer()
    made = sequence_of("", prediction=OLD)
    assert draft(unsure, made, confidence=0.99) is NOTHING


def test_a_sure_place_forgives_earlier_misses() -> None:
    text = OLD.encode()
    trace, at = Trace(text, misses=6), text.index(b"for number")
    trace.follow(bytearray(b"# " + text[at : at + 30]), 0)
    assert (trace.at, trace.misses) == (-1, 7), "48 bytes must match after so many misses, and were never reliable"
    trace.follow(bytearray(b"# " + text[at : at + 50]), 0)
    assert trace.at == at + 50
    trace.follow(bytearray(b"# " + text[at : at + 50 + SURE]), 0)
    assert (trace.misses, trace.at) == (0, at + 50 + SURE)


RENAMED = {
    "a name": ("price", "amount"),
    "a longer one": ("price", "price_in_euro"),
    "the same end": ("price", "sales_price"),
    "not ASCII": ("price", "größe"),
}


@pytest.mark.parametrize("name", RENAMED)
def test_a_renamed_name_is_renamed_in_what_follows(name: str) -> None:
    """The first place is found out, the others are drafted like unchanged text."""
    old, new = RENAMED[name]
    before = "".join(f"    total{n} += {old} * rate[{n}] - min_{old}\n" for n in range(12))
    after = re.sub(rf"\b{old}\b", new, before)
    fewest, _ = write(after, after)
    rounds, drafts = write(before, after)
    assert rounds <= fewest + 5, [each.text for each in drafts]
    assert f"min_{old}".encode() in drafts[-2].text + drafts[-1].text, "a part of another name stays"


def test_an_insertion_is_no_renaming() -> None:
    before = "".join(f"show(price, {n})\n" for n in range(12))
    rounds, _ = write(before, before.replace("price", "price, tax", 1))
    assert rounds <= write(before, before)[0] + 4


def ended(proposer: PredictionProposer, text: str, stop: str, last: int = 5, scope: str = "") -> None:
    """Complete a text that ends with a stop string, and with this token. Token 7 ends a text by itself."""
    sequence = sequence_of("", text + stop, prediction=text, scope=scope)
    sequence.eos_ids, sequence.cut = frozenset({7}), len(text)
    sequence.ids.append(last)
    proposer.release(sequence, "stop")


def test_the_last_stop_string_follows_the_prediction() -> None:
    proposer = PredictionProposer()
    assert draft(proposer, sequence_of("", prediction="x = 1\n")).text == b"x = 1\n", "none is known"
    ended(proposer, OLD, "\n```\n")
    assert draft(proposer, sequence_of("", prediction="x = 1\n")).text == b"x = 1\n```\n", "one line break, not two"
    assert draft(proposer, sequence_of("", "x = 1", prediction="x = 1")).text == b"\n```\n", "also alone"
    assert draft(proposer, sequence_of("", prediction="x", scope="another")).text == b"x"
    ended(proposer, OLD, "</s>", last=7)
    assert draft(proposer, sequence_of("", prediction="x = 1\n")).text == b"x = 1\n", "a token is no text"


def test_few_ends_are_kept() -> None:
    proposer = PredictionProposer()
    for number in range(2 * MAX_SCOPES):
        ended(proposer, "x", ";", scope=str(number))
    assert list(proposer._ends) == [str(number) for number in range(MAX_SCOPES, 2 * MAX_SCOPES)]


@given(st.lists(st.sampled_from(["a", "b", "(", " ", "\n", "long_name"]), max_size=40), st.data())
def test_an_alignment_ends_where_the_cheapest_one_does(words: list[str], data: st.DataObject) -> None:
    """Against the textbook recurrence, from any word on."""
    begin = data.draw(st.integers(0, len(words)))
    written = data.draw(st.lists(st.sampled_from(["a", "(", "\n", "other"]), min_size=1, max_size=8))
    spaced, text = "|".join([*written, ""]), "|".join(["", *words, ""])
    alignment = Alignment(text.encode(), len("|".join(["", *words[:begin], ""])))
    alignment.write(spaced.encode())
    pieces = _WORD.findall(text.encode())
    costs = [math.inf] * (len(pieces) + 1)
    costs[len(_WORD.findall("|".join(["", *words[:begin], ""]).encode()))] = 0.0
    costs = jumped(costs)
    for word in _WORD.findall(spaced.encode())[:-1]:
        stays = [cost + ADDED for cost in costs]
        costs = jumped(
            [stays[0], *(min(stays[n + 1], costs[n] if pieces[n] == word else math.inf) for n in range(len(pieces)))]
        )
    assert alignment._costs.tolist() == pytest.approx(costs)


def jumped(costs: list[float]) -> list[float]:
    """Return the costs if words may be left out, or if the text may go on anywhere else."""
    least = min(costs) + MOVED
    return [
        min(least, *(costs[first] + LEFT_OUT * (last - first) for first in range(last + 1)))
        for last in range(len(costs))
    ]


HOSTILE = {
    "one letter": ("a" * MAX_PREDICTION, "ab"),
    "one letter, and another": ("a" * (MAX_PREDICTION - 1) + "b", "a" * 47 + "c"),
    "spaces": (" " * MAX_PREDICTION, "  x "),
    "nearly": (("a" * 40 + "b") * (MAX_PREDICTION // 41), "a" * 41 + "b"),
    "four bytes": ("\U0001f600" * MAX_PREDICTION, "\U0001f600" * 11 + "x"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_prediction_costs_a_bounded_time(name: str) -> None:
    """Each round searches only a window, in linear time: 2,000 rounds that could each read the whole."""

    def rounds(prediction: str, piece: str) -> None:
        proposer, sequence = PredictionProposer(), sequence_of("", prediction=prediction)
        data = (piece * 2000).encode()
        draft(proposer, sequence)
        for at in range(0, 6000, 3):
            sequence.generated += data[at : at + 3]
            assert len(draft(proposer, sequence).text) <= 400

    code = "".join(f"value_{number} = {number}\n" for number in range(MAX_PREDICTION // 20))
    usual = least(lambda: rounds(code[:MAX_PREDICTION], "zq "))
    assert least(lambda: rounds(*HOSTILE[name]), 1) < 50 * usual, "about 6, as each round reads its window once"


def test_what_is_far_away_is_not_looked_for() -> None:
    far = "x" * FAR + "a place far away, here: what follows\n"
    sequence = sequence_of("", "a place far away, here:", prediction=far)
    assert draft(PredictionProposer(), sequence) is NOTHING
