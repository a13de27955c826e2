"""Who decodes which prompts, and passes over them: the fastest variant, turns, and wrong texts that are counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from codespec.bench.decode_grid import CONCURRENCY, FILLS, Cell
from codespec.bench.decode_passes import HOPELESS, Lineup, References, calibrate, run_pass
from codespec.bench.peers.contest import (
    PROJECTS,
    PROMPTS,
    Answer,
    Contestant,
    PeerError,
    Task,
    Variant,
    Work,
    cut_at_end,
)
from codespec.bench.peers.never_right import NEVER, spoil
from codespec.sequence import Draft

FAST, SLOW, BROKEN = Variant("float32"), Variant("bfloat16"), Variant("bfloat16", threads=2)


class Fake:
    """A contestant that counts up from its prompt's number; `pace` seconds a token by variant, or a failure."""

    family, batched, keyed, reference = "fakes", True, True, "fakes"

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
        ids = [cut_at_end(own, work.ends) for own in ids]
        tokens = sum(map(len, ids)) - len(ids)
        return Answer(ids, 1.0 + pace * tokens, 1.0, len(ids), tokens)


class Fakes:
    """A family of them."""

    name = "fakes"

    def __init__(self, *contestants: Fake, absent: Mapping[str, str] | None = None) -> None:
        self.contestants: Sequence[Contestant] = contestants
        self.absent = absent or {}
        self.kept: set[Variant] = set()

    def keep(self, variants: Collection[Variant]) -> None:
        self.kept = set(variants)


def tasks(count: int, kind: str = PROMPTS, first: int = 1) -> list[Task]:
    return [Task(number, kind, "x", "", "", (1, 2, 3)) for number in range(first, first + count)]


def test_calibration_takes_the_fastest_and_reports_who_fails() -> None:
    quick = Fake("plain", {SLOW: 2.0, FAST: 1.0, BROKEN: -1.0})
    broken = Fake("broken", {BROKEN: -1.0})
    far = Fake("far", {SLOW: 1.0, FAST: HOPELESS * 1.1})
    far.family = "others"  # with nobody to follow
    family = Fakes(quick, broken, far, absent={"missing": "not installed"})
    lineup = Lineup([family])
    found = calibrate(lineup, tasks(4), True, lambda: None)
    assert lineup.variant("plain", 1) == lineup.variant("plain", 8) == FAST and lineup.variant("far", 1) == SLOW
    assert lineup.absent["missing"] == "not installed" and set(lineup.absent) == {"broken", "missing"}
    assert [contestant.name for contestant in lineup.contestants] == ["plain", "far"] and family.kept == {FAST, SLOW}
    assert [row["tokens_per_second"] for row in found["plain"]] == [0.5, 1.0] * 2
    tried = [variant for variant, work in far.asked if work.tokens and len(work.tasks) == 1]
    assert tried == [SLOW, FAST, SLOW]  # the hopeless one is not tried again


def test_who_guesses_follows_who_does_not() -> None:
    plain, other = Fake("plain", {SLOW: 2.0, FAST: 1.0}), Fake("other", {SLOW: 1.0, FAST: 5.0})
    calibrate(Lineup([Fakes(plain, other)]), tasks(4), False, lambda: None)
    assert {variant for variant, work in plain.asked if work.tokens} == {SLOW, FAST}
    assert {variant for variant, work in other.asked if work.tokens} == {FAST}
    assert {len(work.tasks) for _, work in other.asked if work.tokens} == {1}


def test_who_guesses_follows_the_fastest_of_several() -> None:
    slow, fast, other = Fake("plain", {SLOW: 2.0}), Fake("plain", {FAST: 1.0}), Fake("other", {SLOW: 1.0, FAST: 1.0})
    slow.name = "another plain one"
    calibrate(Lineup([Fakes(slow, fast, other)]), tasks(4), False, lambda: None)
    assert {variant for variant, work in other.asked if work.tokens} == {FAST}


def lineup_of(*contestants: Fake) -> Lineup:
    return Lineup([Fakes(*contestants)], fastest={c.name: {"one": FAST} for c in contestants})


def run(lineup: Lineup, work: list[Work], repeat: int = 0) -> dict[str, list[dict[str, Any]]]:
    references = References(lineup, None, [b"x"] * 64)  # type: ignore[arg-type]
    return run_pass(lineup, references, None, repeat, work, lambda: None)  # type: ignore[arg-type]


def test_a_wrong_text_is_counted_and_the_others_take_turns() -> None:
    plain, liar = Fake("plain", {FAST: 1.0}), Fake("liar", {FAST: 1.0}, wrong=2)
    several = [*tasks(3), *tasks(1, PROJECTS, 4)]
    found = run(lineup_of(plain, liar), Cell("greedy", 1).work(several, 4, 8, frozenset({9})))
    assert [record["equal"] for record in found["liar"]] == [1, 0, 1, 1]
    assert [record["loops"] for record in found["liar"]] == [0] * 4
    assert [record["work"] for record in found["plain"]] == [0, 1, 2, 3]
    assert [record["kind"] for record in found["plain"]] == [PROMPTS] * 3 + [PROJECTS]
    # Prompt n counts up from n and ends behind 9, or after eight tokens.
    assert [(r["written"], r["ended"]) for r in found["plain"]] == [(8, 0), (8, 1), (7, 1), (6, 1)]


def test_those_who_take_one_at_a_time_are_left_out_of_larger_cells() -> None:
    alone, plain = Fake("alone", {FAST: 1.0}, batched=False), Fake("plain", {FAST: 1.0})
    lineup = lineup_of(plain, alone)
    mixed = [task for turn in range(8) for task in (*tasks(1, first=turn), *tasks(1, PROJECTS, 20 + turn))]
    found = run(lineup, Cell("greedy", 8).work(mixed, 4, 4, frozenset()), repeat=1)
    assert [(record["prompts"], record["kind"], record["equal"]) for record in found["plain"]] == [(16, "", 16)]
    assert set(found) == {"plain"} and set(run(lineup, Cell("greedy", 1).work(mixed, 2, 4, frozenset()))) == {
        "plain",
        "alone",
    }


@given(st.integers(0, 120), st.integers(1, 60), st.sampled_from(CONCURRENCY))
def test_works_are_of_one_size_and_enough_to_fill_the_batch(there: int, limit: int, concurrency: int) -> None:
    found = Cell("sampled", concurrency).work(tasks(there), limit, 8, frozenset({1}))
    size = concurrency if concurrency == 1 else FILLS * concurrency
    assert {len(work.tasks) for work in found} <= {size}
    assert len(found) == min(there, max(limit, size)) // size
    taken = [task.number for work in found for task in work.tasks]
    assert taken == list(range(1, len(taken) + 1))
    assert all(work.count == concurrency and work.temperature > 0 and work.ends == {1} for work in found)


def test_a_text_is_cut_behind_its_end() -> None:
    assert (
        cut_at_end([5, 2, 7, 2], {2, 7}) == (5, 2) and cut_at_end([5, 6], {2}) == (5, 6) and cut_at_end([], {2}) == ()
    )


def test_a_spoilt_draft_is_as_long_and_as_sure() -> None:
    assert spoil(Draft(), 3.0) == Draft()
    model = spoil(Draft(b"ab cd ef", "draft_model", (2, 5, 8), (0.9, 0.8, 0.1)), 3.0)
    assert model == Draft(NEVER * 3, "draft_model", (1, 2, 3), (0.9, 0.8, 0.1))
    lookup = spoil(Draft(b"some twelve.", "suffix", (12,), (0.7,)), 3.0)
    assert lookup == Draft(NEVER * 4, "suffix", (4,), (0.7,))
