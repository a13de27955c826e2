"""Figures from made-up records: ratios are paired and kinds are kept apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from codespec_lab.bench.decode.codespec_engine import NEVER_RIGHT, OFF, ON
from codespec_lab.bench.decode.contest import Variant
from codespec_lab.bench.decode.summary import ALL, compare, mismatches, report, summarize
from codespec_lab.bench.harness import condensed
from codespec_lab.bench.sites import PROJECTS, PROMPTS

FAST = Variant("float32")
CELL = "greedy, 1 at once"


def record(work: int, pace: float, kind: str = PROMPTS, **more: Any) -> dict[str, Any]:
    return {
        "work": work, "kind": kind, "prompts": 1, "seconds": 5.0 + 10 * pace, "first_seconds": 5.0, "tokens": 10,
        "written": 11, "ended": 0, "rounds": 10, "drafted": 0, "accepted": 0, "split": {"rest": 10 * pace}, "equal": 1,
        "loops": 0, "predicted": 10.0, **more,
    }  # fmt: skip


def section(passes: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    fastest = {"fastest": {"one": FAST.as_dict()}}
    contestants: dict[str, Any] = {
        name: {
            "family": name.split(" ")[0], "plain": name == OFF, "batched": True, "settings": {"tokens": 5}, **fastest
        }
        for name in names
    }  # fmt: skip
    pair = {"target": {"name": "some target", "parameters": 1e6, "vocabulary": 9, "stored": "Q4_1"}}
    return {
        "contestants": contestants | {"gone": {"absent": "it is not there"}}, "note": "a note", "passes": passes,
        "configuration": {"machine": {"processor": "some processor"}, "versions": {"codespec": "1"}}, "pair": pair,
    }  # fmt: skip


def one_pass(repeat: int, records: dict[str, list[dict[str, Any]]], concurrency: int = 1) -> dict[str, Any]:
    return {
        "sampling": "greedy", "concurrency": concurrency, "repeat": repeat, "commit": "abc", "records": records,
    }  # fmt: skip


def test_ratios_are_paired_so_that_a_busy_repeat_does_not_count() -> None:
    speeds = {0: 1.0, 1: 9.0, 2: 1.0, 3: 30.0, 4: 1.0}  # slowdown of the machine, by repeat
    passes = [
        one_pass(
            repeat,
            {
                OFF: [record(n, 2.0 * slow) for n in range(6)],
                ON: [record(n, 1.0 * slow) for n in range(3)],  # the others are missing
            },
        )
        for repeat, slow in speeds.items()
    ]
    rows = summarize(section(passes, OFF, ON))["cells"][CELL]["kinds"][ALL]["rows"]
    times = rows[ON]["times"][OFF]
    assert times["ratio"] == times["low"] == times["high"] == pytest.approx(2.0)
    assert (times["works"], times["repeats"]) == (3, 5) and rows[OFF]["times"] == {}


def test_a_ratio_is_the_median_over_prompts_with_its_spread() -> None:
    off = {(repeat, work): record(work, 6.0) for repeat in range(3) for work in range(9)}
    on = {unit: record(unit[1], 6.0 / (1 + unit[1])) for unit in off}  # prompt n is 1 + n times as fast
    on[1, 8] = record(8, 1e-6)  # one lucky repeat of one prompt
    found = compare(on, off)
    assert found is not None and found["ratio"] == pytest.approx(5.0)
    assert 1.0 <= found["low"] < 5.0 < found["high"] <= 9.0
    one = compare({(n, 0): record(0, pace) for n, pace in enumerate((1.0, 2.0, 3.0))}, off)
    assert one is not None and (one["ratio"], one["low"], one["high"], one["works"]) == (3.0, 2.0, 6.0, 1)


def test_a_text_that_ended_at_once_has_no_pace() -> None:
    on = {(0, 0): record(0, 1.0, tokens=0, written=1, ended=1), (0, 1): record(1, 1.0)}
    off = {(0, 0): record(0, 2.0, tokens=0, written=1, ended=1), (0, 1): record(1, 3.0)}
    found = compare(on, off)
    assert found is not None and (found["ratio"], found["works"]) == (3.0, 1)
    assert compare({(0, 0): on[0, 0]}, off) is None
    rows = summarize(section([one_pass(0, {OFF: [off[0, 0]]})], OFF))["cells"][CELL]["kinds"][ALL]["rows"]
    assert rows[OFF]["ended"] == 1.0 and rows[OFF]["tokens_per_second"] == 0.0


def judged_section() -> dict[str, Any]:
    """Two kinds of prompts at one at once, and several at once."""
    paces = {OFF: 1.0, ON: 0.4, NEVER_RIGHT: 1.25, "codespec suffix": 0.8, "transformers": 2.0}
    passes = []
    for repeat in range(2):
        records = {
            name: [record(0, pace), record(1, pace if name == OFF else pace / 2, PROJECTS)]
            for name, pace in paces.items()
        }
        for name, seconds in ((OFF, 18.0), (ON, 9.0)):
            records[name] = [{**one, "predicted": seconds} for one in records[name]]
        records["broken"] = [{"work": 0, "kind": PROMPTS, "failed": "it broke"}]
        several = {
            name: [record(0, pace, "", prompts=8, predicted=10 * pace)]
            for name, pace in paces.items()
            if name in (OFF, ON)
        }
        passes += [one_pass(repeat, records), one_pass(repeat, several, 4)]
    return section(passes, *paces, "broken")


def test_kinds_are_apart_and_failures_are_reported() -> None:
    found = judged_section()
    found["summary"] = summarize(found)
    kinds = found["summary"]["cells"][CELL]["kinds"]
    assert set(kinds) == {ALL, PROMPTS, PROJECTS} and kinds[ALL]["prompts"] == 2
    assert kinds[PROMPTS]["rows"][ON]["times"][OFF]["ratio"] == pytest.approx(2.5)
    assert kinds[PROJECTS]["rows"][ON]["times"][OFF]["ratio"] == pytest.approx(5.0)
    assert set(found["summary"]["cells"]["greedy, 4 at once"]["kinds"]) == {ALL}
    assert kinds[ALL]["failed"] == {"broken": "it broke"}
    rows = kinds[ALL]["rows"]
    assert set(rows[ON]["times"]) == set(rows) - {ON} and set(rows["transformers"]["times"]) == {OFF}
    assert rows[ON]["predicted"] == pytest.approx(2.0) and "predicted" not in rows["transformers"]
    prediction = found["summary"]["prediction"]
    assert prediction["rows"] == 4 and prediction["worst"] == f"{CELL}, {ON}"
    sections = {"own": found, "qwen2.5-0.5b": found, "qwen2.5-7b": {"passes": []}}  # the last section was interrupted
    text = "\n".join(report({"sections": sections}))
    assert "broken: one: float32, 1 thread(s) (tokens 5)" in text and "7b" not in text
    assert "some processor" in text and "broken failed: it broke" in text and "gone: it is not there" in text
    assert "target: some target, 1.0 M parameters, 9 tokens, from Q4_1" in text and "a note" in text
    assert "qwen2.5-0.5b's cost (simulated)" in text and "at worst (greedy, 1 at once, codespec on)" in text


def test_a_text_of_ours_that_differs_is_a_mismatch() -> None:
    found = judged_section()
    for one in found["passes"][0]["records"].values():
        one[0]["equal"] = 0  # other programs' texts may differ
    for records in found["passes"][1]["records"].values():
        records[0]["equal"] = 8
    found["summary"] = summarize(found)
    wrong = mismatches({"sections": {"own": found}})
    assert {text.split(", greedy")[0] for text in wrong} == {OFF, ON, NEVER_RIGHT, "codespec suffix"}
    assert sum(text.endswith(f"{CELL}, own: 1 of 4 texts") for text in wrong) == 4
    assert "transformers: NOT EQUAL to plain in 1 of 4 texts" in "\n".join(report({"sections": {"own": found}}))


def test_what_documents_keep_is_small_and_says_the_same() -> None:
    found = judged_section()
    found["summary"] = summarize(found)
    kept = condensed({"bench": "decode", "sections": {"own": found}})["sections"]["own"]
    assert "passes" not in kept and "passes" in found
    assert kept["summary"]["cells"][CELL]["kinds"][PROMPTS]["rows"][ON]["times"][OFF]["ratio"] == 2.5
    assert len(json.dumps(kept)) < len(json.dumps(found))
