"""Passes over prompts: the fastest variant, turns, counts of wrong texts, and seconds predicted by a cost table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
from codespec_lab.bench.decode.contest import (
    Answer,
    Cell,
    Contestant,
    Family,
    PeerError,
    Round,
    StepRounds,
    Task,
    Variant,
    Workload,
    cut_at_end,
)
from codespec_lab.bench.decode.passes import HOPELESS, LATE, Lineup, References, calibrate, predicted_seconds, run_pass
from codespec_lab.bench.harness import Deadline
from codespec_lab.bench.sites import PROJECTS, PROMPTS, Site

from codespec.speculation.cost_model import CostTable, Curve, ForwardCost

FAST, SLOW, BROKEN = Variant("float32"), Variant("bfloat16"), Variant("bfloat16", threads=2)


class Fake(Contestant):
    """A contestant that counts up from its prompt's number; `pace` seconds a token by variant, or a failure."""

    family, batched, keyed, reference = "fakes", True, True, "fakes"

    def __init__(self, name: str, paces: Mapping[Variant, float], wrong: int = -1, batched: bool = True) -> None:
        self.name, self.paces, self.wrong, self.batched = name, paces, wrong, batched
        self.plain = name == "plain"
        self.asked: list[tuple[Variant, Workload]] = []

    def variants(self) -> list[Variant]:
        return list(self.paces)

    def begin(self) -> None:
        self.asked.append((FAST, Workload((), 0)))

    def facts(self, variant: Variant) -> dict[str, Any]:
        return {}

    def answer(self, work: Workload, variant: Variant) -> Answer:
        self.asked.append((variant, work))
        pace = self.paces[variant]
        if pace < 0:
            raise PeerError("it fails on purpose")
        ids = [tuple(range(task.number, task.number + work.tokens)) for task in work.tasks]
        ids = [(*own[:-1], 0) if task.number == self.wrong else own for task, own in zip(work.tasks, ids, strict=True)]
        ids = [cut_at_end(own, work.ends) for own in ids]
        tokens = sum(map(len, ids)) - len(ids)
        return Answer(ids, 1.0 + pace * tokens, 1.0, len(ids), tokens)


class Fakes(Family):
    """A family of fake contestants."""

    name = "fakes"

    def __init__(self, *contestants: Fake, absent: Mapping[str, str] | None = None) -> None:
        self.contestants: Sequence[Contestant] = contestants
        self.absent = absent or {}
        self.kept: set[Variant] = set()

    def keep(self, variants: Collection[Variant]) -> None:
        self.kept = set(variants)


def tasks(count: int, kind: str = PROMPTS, first: int = 1) -> list[Task]:
    return [Task(number, Site("x", kind=kind), (1, 2, 3)) for number in range(first, first + count)]


def test_calibration_takes_the_fastest_and_reports_who_fails() -> None:
    quick = Fake("plain", {SLOW: 2.0, FAST: 1.0, BROKEN: -1.0})
    broken = Fake("broken", {BROKEN: -1.0})
    far = Fake("far", {SLOW: 1.0, FAST: HOPELESS * 1.1})
    far.family = "others"  # no plain contestant to follow
    family = Fakes(quick, broken, far, absent={"missing": "not installed"})
    lineup = Lineup([family])
    found = {one.name: rows for one, rows in calibrate(lineup, tasks(4), True, Deadline(None))}
    assert lineup.variant("plain", 1) == lineup.variant("plain", 8) == FAST and lineup.variant("far", 1) == SLOW
    assert lineup.absent["missing"] == "not installed" and set(lineup.absent) == {"broken", "missing"}
    assert [contestant.name for contestant in lineup.contestants] == ["plain", "far"] and family.kept == {FAST, SLOW}
    assert [row["tokens_per_second"] for row in found["plain"]] == [0.5, 1.0] * 2
    tried = [variant for variant, work in far.asked if work.tokens and len(work.tasks) == 1]
    assert tried == [SLOW, FAST, SLOW]  # the slow variant is not tried again


def test_who_guesses_follows_who_does_not() -> None:
    plain, other = Fake("plain", {SLOW: 2.0, FAST: 1.0}), Fake("other", {SLOW: 1.0, FAST: 5.0})
    list(calibrate(Lineup([Fakes(plain, other)]), tasks(4), False, Deadline(None)))
    assert {variant for variant, work in plain.asked if work.tokens} == {SLOW, FAST}
    assert {variant for variant, work in other.asked if work.tokens} == {FAST}
    assert {len(work.tasks) for _, work in other.asked if work.tokens} == {1}


def test_who_guesses_follows_the_fastest_of_several() -> None:
    slow, fast, other = Fake("plain", {SLOW: 2.0}), Fake("plain", {FAST: 1.0}), Fake("other", {SLOW: 1.0, FAST: 1.0})
    slow.name = "another plain one"
    list(calibrate(Lineup([Fakes(slow, fast, other)]), tasks(4), False, Deadline(None)))
    assert {variant for variant, work in other.asked if work.tokens} == {FAST}


class Clock(Deadline):
    """A deadline that has passed after it was checked a number of times."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def too_late(self, seconds: float) -> bool:
        self.left -= 1
        return self.left < 0


def test_calibration_ends_at_its_deadline_and_a_later_run_goes_on() -> None:
    """The contestant in progress keeps its measurements; later ones are absent in this run only."""
    quick, later = Fake("plain", {SLOW: 2.0, FAST: 1.0}), Fake("later", {FAST: 1.0, SLOW: 1.0})
    lineup = Lineup([Fakes(quick, later)])
    found = {one.name: rows for one, rows in calibrate(lineup, tasks(4), True, Clock(1))}
    assert [row["dtype"] for row in found["plain"]] == ["bfloat16"] and lineup.variant("plain", 8) == SLOW
    assert lineup.absent == {"later": LATE} and not later.asked
    again = Lineup([Fakes(quick, later)], fastest=lineup.fastest)
    found = {one.name: rows for one, rows in calibrate(again, tasks(4), True, Deadline(None))}
    assert {row["prompts"] for row in found["plain"]} == {4} and again.variant("plain", 1) == SLOW
    assert not again.absent and len(found["later"]) == 2


def test_someone_is_calibrated_even_without_any_time() -> None:
    lineup = Lineup([Fakes(Fake("broken", {FAST: -1.0}), Fake("plain", {FAST: 1.0, SLOW: 2.0}))])
    assert [one.name for one, _ in calibrate(lineup, tasks(4), False, Clock(0))] == ["broken", "plain"]
    assert lineup.variant("plain", 1) == FAST and set(lineup.absent) == {"broken"}


def lineup_of(*contestants: Fake) -> Lineup:
    return Lineup([Fakes(*contestants)], fastest={c.name: {"one": FAST} for c in contestants})


def run(lineup: Lineup, work: list[Workload], repeat: int = 0) -> dict[str, list[dict[str, Any]]]:
    references = References(lineup, [b"x"] * 64)
    return run_pass(lineup, references, None, repeat, work, lambda: None)  # type: ignore[arg-type]


def test_a_wrong_text_is_counted_and_the_others_take_turns() -> None:
    plain, liar = Fake("plain", {FAST: 1.0}), Fake("liar", {FAST: 1.0}, wrong=2)
    several = [*tasks(3), *tasks(1, PROJECTS, 4)]
    found = run(lineup_of(plain, liar), Cell("greedy", 1).workloads(several, 4, 8, frozenset({9})))
    assert [record["equal"] for record in found["liar"]] == [1, 0, 1, 1]
    assert [record["loops"] for record in found["liar"]] == [0] * 4
    assert [record["work"] for record in found["plain"]] == [0, 1, 2, 3]
    assert [record["kind"] for record in found["plain"]] == [PROMPTS] * 3 + [PROJECTS]
    # Prompt n counts up from n and ends after 9, or after eight tokens.
    assert [(r["written"], r["ended"]) for r in found["plain"]] == [(8, 0), (8, 1), (7, 1), (6, 1)]


INT8, Q4 = Variant("int8"), Variant("q4_k_m")


def compared(*settings: tuple[str, str, str, Variant]) -> dict[str, list[str]]:
    """In which formats the plain contestants were asked to write one text; `settings` are each contestant's name,
    family, reference and variant.
    """
    made = []
    for name, family, reference, _ in settings:
        made.append(Fake(name, dict.fromkeys((FAST, SLOW, INT8, Q4), 1.0)))
        made[-1].family, made[-1].reference, made[-1].plain = family, reference, name.startswith("plain")
    variants = {name: {"one": variant} for name, _, _, variant in settings}
    lineup = Lineup([Fakes(*made)], fastest=variants)
    references = References(lineup, [])
    work = Workload(tuple(tasks(1)), 4)
    for contestant in made:
        variant = lineup.variant(contestant.name, 1)
        assert references.equal(contestant, variant, work, contestant.answer(work, variant)) == 1
    return {one.name: [variant.dtype for variant, _ in one.asked] for one in made if one.plain}


def test_texts_are_compared_in_their_own_format() -> None:
    """int8 with int8 without drafts; a float program with codespec in that format, which is loaded for it alone."""
    ours = [("plain own", "own", "own", INT8), ("own on", "own", "own", INT8)]
    floats = [("plain floats", "floats", "own", SLOW), ("floats draft", "floats", "floats", SLOW)]
    assert compared(*ours, *floats) == {"plain own": ["int8", "bfloat16"], "plain floats": ["bfloat16"]}


def test_another_programs_format_is_compared_with_a_float_one() -> None:
    """Another program's int8 rounds differently from codespec's."""
    ours = ("plain own", "own", "own", INT8)
    theirs = [("plain theirs", "theirs", "own", INT8), ("theirs draft", "theirs", "theirs", INT8)]
    assert compared(ours, *theirs) == {"plain own": ["int8", "float32"], "plain theirs": ["int8"]}
    quantized = ("plain llama", "llama", "own", Q4)
    assert compared(ours, quantized)["plain own"] == ["int8", "float32"]
    assert compared(ours, ("plain floats", "floats", "own", SLOW), quantized)["plain own"] == ["int8", "bfloat16"]
    assert compared(("plain own", "own", "own", SLOW), quantized)["plain own"] == ["bfloat16"]


def test_those_who_take_one_at_a_time_are_left_out_of_larger_cells() -> None:
    alone, plain = Fake("alone", {FAST: 1.0}, batched=False), Fake("plain", {FAST: 1.0})
    lineup = lineup_of(plain, alone)
    mixed = [task for turn in range(8) for task in (*tasks(1, first=turn), *tasks(1, PROJECTS, 20 + turn))]
    found = run(lineup, Cell("greedy", 8).workloads(mixed, 4, 4, frozenset()), repeat=1)
    assert [(record["prompts"], record["kind"], record["equal"]) for record in found["plain"]] == [(16, "", 16)]
    assert set(found) == {"plain"} and set(run(lineup, Cell("greedy", 1).workloads(mixed, 2, 4, frozenset()))) == {
        "plain",
        "alone",
    }


def test_a_text_is_cut_behind_its_end() -> None:
    assert (
        cut_at_end([5, 2, 7, 2], {2, 7}) == (5, 2) and cut_at_end([5, 6], {2}) == (5, 6) and cut_at_end([], {2}) == ()
    )


TABLE = CostTable(
    ForwardCost((64,), (Curve((1, 2, 8, 32), (1.0, 1.1, 1.4, 4.0)),)),
    {"draft_model": ForwardCost((64,), (Curve((1, 8), (0.2, 0.3)),))},
    draft=0.01,
)
PLAIN = Round("", 0, 0, 0)


def test_a_plain_step_costs_a_forward_and_a_round() -> None:
    assert predicted_seconds([StepRounds(64.0, [PLAIN])], TABLE) == pytest.approx(1.0)
    assert predicted_seconds([StepRounds(64.0, [PLAIN, PLAIN])] * 3, TABLE) == pytest.approx(3 * (1.1))


def test_drafts_cost_their_rows_whether_they_held_or_not() -> None:
    """Seven drafted ids make eight rows; a lookup needs no forwards, a drafter one per unit."""
    for accepted in (0, 7):
        lookup = predicted_seconds([StepRounds(64.0, [Round("suffix", 7, accepted, 1)])], TABLE)
        assert lookup == pytest.approx(1.4 + 0.01)
    drafter = predicted_seconds([StepRounds(64.0, [Round("draft_model", 7, 2, 5)])], TABLE)
    assert drafter == pytest.approx(1.4 + 0.01 + 5 * 0.2)
