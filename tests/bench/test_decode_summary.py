"""Figures from records made up here: ratios are paired, groups are apart, bounds bound, and no file is half written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.bench import decode_sheet
from codespec.bench.decode_bound import Rounds, bound
from codespec.bench.decode_passes import HOPELESS, Cell, Lineup, References, batches, calibrate, run_pass
from codespec.bench.decode_prompts import CODE, LOOPS, Chosen, Place, digest, find_places
from codespec.bench.decode_report import report
from codespec.bench.decode_sheet import Sheet
from codespec.bench.decode_summary import HEADLINE_PROMPTS, summarize
from codespec.bench.peers.contest import Answer, PeerError, Played, PlayedStep, Task, Variant, Work
from codespec.control.costs import CostTable, Curve, ForwardCost
from codespec.errors import ConfigError

FAST, SLOW, BROKEN = Variant("float32"), Variant("bfloat16"), Variant("bfloat16", threads=2)
TABLE = CostTable(
    ForwardCost((64,), (Curve((1, 2, 8, 32), (1.0, 1.1, 1.4, 4.0)),), Curve((1, 4), (0.0, 0.2))),
    {"draft_model": ForwardCost((64,), (Curve((1, 8), (0.2, 0.3)),))},
    retokenize=0.01,
)


class Fake:
    """A contestant that counts up from its prompt's number; `pace` seconds a token by variant, or a failure."""

    family, batched, keyed = "fakes", True, True

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

    def keep(self, variants: set[Variant]) -> None:
        self.kept = variants


def tasks(group: str, count: int, first: int = 1) -> list[Task]:
    return [Task(number, group, "x", "", (1, 2, 3)) for number in range(first, first + count)]


def test_calibration_takes_the_fastest_and_tells_who_fails() -> None:
    quick = Fake("plain", {SLOW: 2.0, FAST: 1.0, BROKEN: -1.0})
    broken = Fake("broken", {BROKEN: -1.0})
    far = Fake("far", {SLOW: 1.0, FAST: HOPELESS * 1.1})
    family = Fakes(quick, broken, far, absent={"missing": "not installed"})
    lineup = Lineup([family])
    told = calibrate(lineup, tasks(CODE, 4), True, lambda: None)
    assert lineup.variant("plain", 1) == lineup.variant("plain", 8) == FAST and lineup.variant("far", 1) == SLOW
    assert lineup.absent == {"broken": "it fails on purpose", "missing": "not installed"}
    assert [contestant.name for contestant in lineup.contestants] == ["plain", "far"] and family.kept == {FAST, SLOW}
    assert [row["tokens_per_second"] for row in told["plain"]] == [0.5, 1.0] * 2
    tried = [variant for variant, work in far.asked if work.tokens and len(work.tasks) == 1]
    assert tried == [SLOW, FAST, SLOW]  # the hopeless one is not tried again


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
    chosen = Chosen([*tasks(CODE, 6), *tasks(LOOPS, 5, 20)])
    cell = Cell("greedy", 2)
    work = [Work(batch, 4) for batch in batches(chosen, cell, 6)]
    found = run_pass(lineup, references, None, cell, 1, work, ["plain", "alone"], lambda: None)  # type: ignore[arg-type]
    assert [record["group"] for record in found["plain"]] == [CODE] * 3 + [LOOPS] * 2
    assert [record["group"] for record in found["alone"]] == [CODE, LOOPS]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 5), st.integers(1, 9))
def test_batches_are_full_and_of_one_kind(code: int, loops: int, concurrency: int, limit: int) -> None:
    chosen = Chosen([*tasks(LOOPS, loops, 20), *tasks(CODE, code)])
    found = list(batches(chosen, Cell("greedy", concurrency), limit))
    most = max(limit, concurrency)
    assert all(len(batch) == concurrency and len({task.group for task in batch}) == 1 for batch in found)
    assert len(found) == min(code, most) // concurrency + min(loops, most) // concurrency


def record(batch: int, pace: float, group: str = CODE, **more: Any) -> dict[str, Any]:
    return {
        "batch": batch, "group": group, "prompts": 1, "seconds": 5.0 + 10 * pace, "first_seconds": 5.0, "tokens": 10,
        "rounds": 10, "drafted": 0, "accepted": 0, "split": {"rest": 10 * pace}, "equal": 1, "loops": 0, **more,
    }  # fmt: skip


def section(passes: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {"family": "transformers", "plain": True, "batched": True, "settings": {}}
    plain["fastest"] = {"one": FAST.as_dict()}
    quick = {**plain, "plain": False, "batched": False, "settings": {"tokens": 5}}
    prompts = {"greedy": {"places": 4, "looping": 1}}
    contestants = {"plain": plain, "quick": quick, "codespec on": quick, "gone": {"absent": "it is not there"}}
    return {"contestants": contestants, "prompts": prompts, "note": "", "costs": {}, "passes": passes}


def turn(repeat: int, **records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"sampling": "greedy", "concurrency": 1, "repeat": repeat, "commit": "abc", "records": records}


def test_ratios_are_paired_so_that_a_busy_repeat_does_not_count() -> None:
    speeds = {0: 1.0, 1: 9.0, 2: 1.0, 3: 30.0, 4: 1.0}  # how slow the machine was
    passes = [
        turn(
            repeat,
            plain=[record(n, 2.0 * slow) for n in range(6)],
            quick=[record(n, 1.0 * slow) for n in range(3)],  # the others are missing
        )
        for repeat, slow in speeds.items()
    ]
    rows = summarize(section(passes))["cells"]["greedy, 1 at once"]["groups"][CODE]["rows"]
    times = rows["quick"]["times_fastest_plain"]
    assert times["ratio"] == times["least"] == times["most"] == pytest.approx(2.0)
    assert times["low"] == times["high"] == pytest.approx(2.0) and (times["batches"], times["repeats"]) == (3, 5)
    assert rows["plain"]["times"]["quick"]["ratio"] == pytest.approx(0.5)


def test_loops_are_apart_and_failures_are_told() -> None:
    passes = [
        turn(
            0,
            plain=[record(0, 1.0), record(1, 1.0, LOOPS)],
            quick=[record(0, 1.0), record(1, 0.1, LOOPS)],
            **{"codespec on": [{"batch": 0, "group": CODE, "failed": "it broke"}]},
        )
    ]
    found = section(passes)
    found["summary"] = summarize(found)
    groups = found["summary"]["cells"]["greedy, 1 at once"]["groups"]
    assert groups[CODE]["rows"]["quick"]["times_fastest_plain"]["ratio"] == pytest.approx(1.0)
    assert groups[LOOPS]["rows"]["quick"]["times_fastest_plain"]["ratio"] == pytest.approx(10.0)
    assert groups["all"]["failed"] == {"codespec on": "it broke"} and groups["all"]["prompts"] == 2
    sections = {"own": found, "qwen2.5-0.5b": found, "qwen2.5-7b": {"passes": []}}  # the last was interrupted
    told = "\n".join(report({"sections": sections}))
    assert "quick: one: float32, 1 thread(s) (tokens 5); one prompt after the other" in told and "7b" not in told
    assert "codespec on failed: it broke" in told and "gone: it is not there" in told
    assert "qwen2.5-0.5b's cost (simulated)" in told and "no headline" in told


@pytest.mark.parametrize(("prompts", "repeats", "stated"), [(50, 5, True), (49, 5, False), (50, 4, False)])
def test_a_headline_needs_enough(prompts: int, repeats: int, stated: bool) -> None:
    assert HEADLINE_PROMPTS == 50
    names = {"plain": 2.0, "codespec on": 1.0}
    passes = [
        turn(repeat, **{name: [record(n, pace) for n in range(prompts)] for name, pace in names.items()})
        for repeat in range(repeats)
    ]
    headline = summarize(section(passes))["headline"]
    assert headline["stated"] is stated
    assert not stated or headline["times_fastest_plain"]["ratio"] == pytest.approx(2.0)


PLAYED = st.builds(
    lambda source, drafted, accepted: Played(
        source if drafted else "", drafted, min(drafted, accepted), drafted + 1 if drafted else 0
    ),
    st.sampled_from(["suffix", "draft_model"]),
    st.integers(0, 16),
    st.integers(0, 16),
)
STEPS = st.lists(
    st.builds(PlayedStep, st.floats(10, 500), st.lists(PLAYED, min_size=1, max_size=4)), min_size=1, max_size=12
)


@given(STEPS, st.integers(1, 8))
def test_no_pair_of_lengths_beats_the_bound(steps: list[PlayedStep], batch: int) -> None:
    rounds = Rounds.of(steps, TABLE)
    found = bound(rounds, TABLE, batch)
    assert found.times_plain >= 1 - 1e-9
    survivals = {source: kept.survivals() if source else [] for source, kept in rounds.kept.items()}
    for lengths in product(*(range(len(chances) + 1) for chances in survivals.values())):
        tokens = seconds = 0.0
        for (source, kept), length in zip(rounds.kept.items(), lengths, strict=True):
            tokens += kept.rounds * (1 + sum(survivals[source][:length]))
            seconds += kept.rounds * _round_seconds(rounds, source, length, batch)
        assert tokens / seconds * batch <= found.tokens_per_second * (1 + 1e-6)


def _round_seconds(rounds: Rounds, source: str, length: int, batch: int) -> float:
    kept, context = rounds.kept[source], rounds.context
    more = TABLE.target.seconds(batch * (1 + length), batch, context) - TABLE.target.seconds(batch, batch, context)
    seconds = (TABLE.plain(batch, context) + more) / batch
    if length:
        seconds += TABLE.retokenize
    if length and source in TABLE.drafters:
        units = length * kept.units / kept.tokens
        seconds += units * TABLE.drafters[source].seconds(batch, batch, context) / batch
    return seconds


@given(STEPS)
def test_rounds_survive_json_and_add_up(steps: list[PlayedStep]) -> None:
    whole = Rounds.of(steps, TABLE)
    parts = [json.loads(json.dumps(Rounds.of([step], TABLE).as_dict())) for step in steps]
    added = Rounds.sum_of(parts)
    assert {s: (k.rounds, k.reached, k.right, k.units, k.tokens) for s, k in added.kept.items()} == {
        s: (k.rounds, k.reached, k.right, k.units, k.tokens) for s, k in whole.kept.items()
    }
    assert added.modelled == pytest.approx(whole.modelled) and added.context == pytest.approx(whole.context)


def test_survival_is_counted_where_drafts_reached() -> None:
    drafts = [("suffix", 1, 1), ("suffix", 3, 1), ("suffix", 3, 3), ("suffix", 2, 0)]
    steps = [PlayedStep(10.0, [Played(source, drafted, accepted, 1)]) for source, drafted, accepted in drafts]
    chances = Rounds.of(steps, TABLE).kept["suffix"].survivals()
    assert chances == [3 / 4, 3 / 4 * 1 / 2, 3 / 4 * 1 / 2]  # the draft of one token says nothing of the second


def test_a_sheet_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "sheet.json"
    sheet = Sheet(file)
    sheet.section("own", {"tokens": 4})["passes"].append(1)
    sheet.write()
    assert Sheet(file).section("own", {"tokens": 4})["passes"] == [1]
    with pytest.raises(ConfigError, match="another tokens: name another --json file"):
        Sheet(file).section("own", {"tokens": 5})
    monkeypatch.setattr(decode_sheet, "code_digest", lambda: "changed")
    with pytest.raises(ConfigError, match="another code"):
        Sheet(file).section("own", {"tokens": 4})
    sheet.values["sections"]["own"]["passes"].append(object())
    with pytest.raises(TypeError):
        sheet.write()
    assert json.loads(file.read_text(encoding="utf-8"))["sections"]["own"]["passes"] == [1]
    file.write_text("{}")
    with pytest.raises(ConfigError, match="holds no figures of `codespec bench decode`"):
        Sheet(file)


def test_places_are_the_same_for_everybody(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    texts = ["first line\n" + "x = 1\n" * 300 + f"last {n}" for n in range(12)]
    file.write_text("".join(json.dumps({"prompt": text, "path": "a.py"}) + "\n" for text in texts))
    places, note = find_places(None, file)
    again, _ = find_places(None, file)
    assert digest(places) == digest(again) and note == "prompts of a file" and len(places) == 12
    assert all(place.prefix.startswith("x = 1\n") and "last" in place.prefix for place in places)
    assert [place.prefix[-2:].strip() for place in places] != [str(n) for n in range(12)]  # shuffled
    assert digest([*places, Place("", "")]) != digest(places)
    file.write_text("")
    with pytest.raises(ConfigError):
        find_places(None, file)
