"""Who decodes which prompts, and passes over them: the fastest variant, turns, and wrong texts that are counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.bench.decode_grid import FILLS, FULL, OF, SHARE, SMALL, Cell, takes
from codespec.bench.decode_passes import HOPELESS, UNBATCHED, Lineup, References, calibrate, run_pass
from codespec.bench.decode_prompts import Chosen
from codespec.bench.decode_summary import HEADLINE_PROMPTS
from codespec.bench.peers.contest import CODE, GROUPS, LOOPS, NOISE, Answer, PeerError, Task, Variant, Work
from codespec.bench.peers.hugging_face import ASSISTED
from codespec.bench.peers.never_right import NEVER, spoil
from codespec.bench.peers.ours import OFF
from codespec.sequence import Draft

FAST, SLOW, BROKEN = Variant("float32"), Variant("bfloat16"), Variant("bfloat16", threads=2)


class Fake:
    """A contestant that counts up from its prompt's number; `pace` seconds a token by variant, or a failure."""

    family, batched, keyed = "fakes", True, True
    groups: tuple[str, ...] = ()

    def __init__(self, name: str, paces: Mapping[Variant, float], wrong: int = -1, batched: bool = True) -> None:
        self.name, self.paces, self.wrong, self.batched = name, paces, wrong, batched
        self.plain = name == "plain"
        self.asked: list[tuple[Variant, Work]] = []

    def variants(self) -> list[Variant]:
        return list(self.paces)

    def begin(self) -> None:
        self.asked.append((FAST, Work((), 0)))

    def facts(self, variant: Variant) -> dict[str, Any]:
        return {}

    def answer(self, work: Work, variant: Variant) -> Answer:
        self.asked.append((variant, work))
        pace = self.paces[variant]
        if pace < 0:
            raise PeerError("it fails on purpose")
        ids = [tuple(range(task.number, task.number + work.tokens)) for task in work.tasks]
        ids = [(*own[:-1], 0) if task.number == self.wrong else own for task, own in zip(work.tasks, ids, strict=True)]
        tokens = (work.tokens - 1) * len(ids)
        return Answer(ids, 1.0 + pace * tokens, 1.0, len(ids), tokens)


class Fakes:
    """A family of them."""

    name = "fakes"

    def __init__(self, *contestants: Fake, absent: Mapping[str, str] | None = None) -> None:
        self.contestants = contestants
        self.absent = absent or {}
        self.kept: set[Variant] = set()

    def keep(self, variants: Collection[Variant]) -> None:
        self.kept = set(variants)


def tasks(group: str, count: int, first: int = 1) -> list[Task]:
    return [Task(number, group, "x", "", (1, 2, 3)) for number in range(first, first + count)]


def test_calibration_takes_the_fastest_and_tells_who_fails() -> None:
    quick = Fake("plain", {SLOW: 2.0, FAST: 1.0, BROKEN: -1.0})
    broken = Fake("broken", {BROKEN: -1.0})
    far = Fake("far", {SLOW: 1.0, FAST: HOPELESS * 1.1})
    family = Fakes(quick, broken, far, absent={"missing": "not installed"})
    lineup = Lineup([family])
    told = calibrate(lineup, tasks(CODE, 4), FULL, lambda: None)
    assert lineup.variant("plain", 1) == lineup.variant("plain", 8) == FAST and lineup.variant("far", 1) == SLOW
    assert lineup.absent == {"broken": "it fails on purpose", "missing": "not installed"}
    assert [contestant.name for contestant in lineup.contestants] == ["plain", "far"] and family.kept == {FAST, SLOW}
    assert [row["tokens_per_second"] for row in told["plain"]] == [0.5, 1.0] * 2
    tried = [variant for variant, work in far.asked if work.tokens and len(work.tasks) == 1]
    assert tried == [SLOW, FAST, SLOW]  # the hopeless one is not tried again


def test_who_guesses_may_follow_who_does_not() -> None:
    plain, other = Fake("plain", {SLOW: 2.0, FAST: 1.0}), Fake("other", {SLOW: 1.0, FAST: 5.0})
    calibrate(Lineup([Fakes(plain, other)]), tasks(CODE, 4), replace(SMALL, names=(), many=("plain",)), lambda: None)
    assert {variant for variant, work in plain.asked if work.tokens} == {SLOW, FAST}
    assert {variant for variant, work in other.asked if work.tokens} == {FAST}
    assert {len(work.tasks) for _, work in other.asked if work.tokens} == {1}


def lineup_of(*contestants: Fake) -> Lineup:
    return Lineup([Fakes(*contestants)], fastest={c.name: {"one": FAST} for c in contestants})


def test_a_wrong_text_is_counted_and_the_others_take_turns() -> None:
    plain, liar = Fake("plain", {FAST: 1.0}), Fake("liar", {FAST: 1.0}, wrong=3)
    lineup = lineup_of(plain, liar)
    references = References(lineup, None, [b"x"] * 64)  # type: ignore[arg-type]
    work = [Work((task,), 8) for task in tasks(CODE, 4)]
    found = run_pass(lineup, references, None, Cell("greedy", 1), 0, work, ["plain", "liar"], lambda: None)  # type: ignore[arg-type]
    assert [record["equal"] for record in found["liar"]] == [1, 1, 0, 1]
    assert [record["loops"] for record in found["liar"]] == [0] * 4
    assert [record["batch"] for record in found["plain"]] == [0, 1, 2, 3]


def test_those_who_take_one_at_a_time_do_less_of_a_larger_cell() -> None:
    alone, plain = Fake("alone", {FAST: 1.0}, batched=False), Fake("plain", {FAST: 1.0})
    lineup = lineup_of(plain, alone)
    references = References(lineup, None, [b"x"] * 64)  # type: ignore[arg-type]
    chosen = Chosen([*tasks(CODE, 24), *tasks(LOOPS, 5, 30)])
    cell = Cell("greedy", 8)
    work = [Work(batch, 4, at_once=8) for batch in FULL.batches(chosen, cell)]
    found = run_pass(lineup, references, None, cell, 1, work, ["plain", "alone"], lambda: None)  # type: ignore[arg-type]
    assert [record["prompts"] for record in found["plain"]] == [24]
    assert [record["prompts"] for record in found["alone"]] == [UNBATCHED]
    assert alone.asked[-1][1].tasks == tuple(chosen.tasks[:UNBATCHED])


@given(st.integers(0, 60), st.integers(0, 9), st.sampled_from([1, 4, 8]), st.booleans())
def test_batches_are_full_and_of_one_kind(code: int, loops: int, concurrency: int, greedy: bool) -> None:
    chosen = Chosen([*tasks(LOOPS, loops, 70), *tasks(CODE, code), *tasks(NOISE, 4, 90)])
    cell = Cell("greedy" if greedy else "sampled", concurrency)
    found = list(FULL.batches(chosen, cell))
    most = concurrency * (FILLS if concurrency > 1 else 1)
    assert all(concurrency <= len(batch) <= most and len({task.group for task in batch}) == 1 for batch in found)
    counts = {group: sum(len(batch) for batch in found if batch[0].group == group) for group in GROUPS}
    several = max(most, FULL.fewer // most * most)
    limits = {CODE: FULL.limit, LOOPS: loops, NOISE: 4} if cell.first else {CODE: several, LOOPS: 4, NOISE: 0}
    there = {CODE: code, LOOPS: loops, NOISE: 4}
    wanted = {g: min(there[g], limits[g]) for g in there}
    left_over = {g: n % most if n % most < concurrency else 0 for g, n in wanted.items()}  # too few to fill a batch
    assert {g: counts[g] for g in there} == {g: wanted[g] - left_over[g] for g in there}


@given(st.integers(1, 80), st.integers(0, 3))
def test_everybody_decodes_every_batch_within_five_repeats(count: int, first: int) -> None:
    """And in each repeat some, so that every repeat has a ratio."""
    peer, own = Fake("peer", {}), Fake("own", {})
    own.family = "codespec"
    repeats = range(first, first + OF)
    slow = Fake(ASSISTED, {})
    for contestant, times in ((own, OF), (peer, SHARE if count >= OF else OF), (slow, 1 if count >= OF else OF)):
        taken = [[takes(contestant, CODE, n, count, repeat) for n in range(count)] for repeat in repeats]
        assert all(any(turn) for turn in taken)
        assert all(sum(turn[n] for turn in taken) == times for n in range(count))
    peer.groups = (LOOPS,)
    assert not any(takes(peer, CODE, n, count, 0) for n in range(count)) and takes(peer, LOOPS, 0, 1, 0)


@pytest.mark.parametrize("grid", [FULL, SMALL])
def test_a_grid_has_enough_prompts_for_its_largest_batch(grid: Any) -> None:
    for cell in grid.cells:
        assert list(grid.batches(Chosen(tasks(CODE, grid.most(cell.sampling))), cell))
    assert {cell.first for cell in grid.cells} == {True, False}
    assert grid.takes_part(ASSISTED, Cell("greedy", 1)) and grid.takes_part(OFF, Cell("greedy", 8))
    assert grid.takes_part(ASSISTED, Cell("greedy", 8)) is (grid is FULL)
    assert FULL.limit >= HEADLINE_PROMPTS


def test_a_spoilt_draft_is_as_long_and_as_sure() -> None:
    assert spoil(Draft(), 3.0) == Draft()
    model = spoil(Draft(b"ab cd ef", "draft_model", (2, 5, 8), (0.9, 0.8, 0.1)), 3.0)
    assert model == Draft(NEVER * 3, "draft_model", (1, 2, 3), (0.9, 0.8, 0.1))
    lookup = spoil(Draft(b"some twelve.", "suffix", (12,), (0.7,)), 3.0)
    assert lookup == Draft(NEVER * 4, "suffix", (4,), (0.7,))
