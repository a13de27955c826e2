"""Figures from records made up here: ratios are paired, groups are apart, bounds bound, and no file is half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codespec.bench import decode_sheet
from codespec.bench.decode_prompts import Place, digest, find_places
from codespec.bench.decode_report import report
from codespec.bench.decode_sheet import Sheet
from codespec.bench.decode_summary import HEADLINE_PROMPTS, condensed, summarize
from codespec.bench.peers.contest import (
    CODE,
    LOOPS,
    Variant,
)
from codespec.bench.peers.ours import table_name
from codespec.bench.recording import LONGEST
from codespec.control.costs import CostTable, Curve, ForwardCost
from codespec.errors import ConfigError

FAST = Variant("float32")


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
    return {
        "contestants": contestants, "prompts": prompts, "note": "", "acceptance": {}, "passes": passes,
        "configuration": {"machine": {"processor": "some processor"}},
    }  # fmt: skip


def turn(repeat: int, **records: list[dict[str, Any]]) -> dict[str, Any]:
    return {"sampling": "greedy", "concurrency": 1, "repeat": repeat, "commit": "abc", "costs": {}, "records": records}


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
    assert "some processor" in told and "codespec on failed: it broke" in told and "gone: it is not there" in told
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


def held(source: str, right: int) -> dict[str, Any]:
    """Ten rounds that drafted two tokens each, as counts of what held."""
    rest = [0] * (LONGEST - 2)
    return {source: {"rounds": 10, "drafted": [10, 10, *rest], "right": [right, right, *rest], "units": 20}}


def judged_section() -> dict[str, Any]:
    """Two proposers alone and together, the second of which is better without the first."""
    costs = CostTable(
        ForwardCost((64,), (Curve((1, 8), (1.0, 1.0)),)), {"draft_model": ForwardCost((64,), (Curve((1,), (0.0,)),))}
    )
    played = {"played": {"steps": 9, "context": 64.0, "modelled": 9.0}, "drafted": 4, "accepted": 1}
    off = {"played": {"steps": 10, "context": 64.0, "modelled": 18.0}}
    rows = {"codespec off": off, "codespec on": played, "codespec suffix": played, "codespec draft_model": played}
    paces = {"codespec off": 1.0, "codespec on": 0.4, "codespec suffix": 0.8, "codespec draft_model": 0.5}
    found = section([turn(0, **{name: [record(0, paces[name], **more)] for name, more in rows.items()})])
    sources = {
        "codespec on": ["suffix", "draft_model"],
        "codespec suffix": ["suffix"],
        "codespec draft_model": ["draft_model"],
    }
    for name in rows:
        settings = {"sources": sources.get(name, [])}
        found["contestants"][name] = {
            "family": "codespec",
            "plain": name == "codespec off",
            "batched": True,
            "settings": settings,
            "fastest": {"one": FAST.as_dict()},
        }
    counts = {
        "codespec on": held("suffix", 1),
        "codespec suffix": held("suffix", 1),
        "codespec draft_model": held("draft_model", 8),
    }
    found["acceptance"] = {"greedy": {name: {CODE: [kept]} for name, kept in counts.items()}}
    found["passes"][0]["costs"] = {table_name(FAST): costs.as_dict()}
    return found


def test_a_bound_may_leave_out_a_proposer_and_stands_beside_the_result() -> None:
    found = judged_section()
    found["summary"] = summarize(found)
    rows = found["summary"]["cells"]["greedy, 1 at once"]["groups"][CODE]["rows"]
    bounds = {name: row["bound"] for name, row in rows.items() if "bound" in row}
    assert bounds["codespec suffix"]["times_plain"] == pytest.approx(1.2, rel=1e-3)  # one round in ten brings two more
    assert bounds["codespec draft_model"]["times_plain"] == pytest.approx(2.6, rel=1e-3)
    assert bounds["codespec on"] == bounds["codespec draft_model"] and "codespec off" not in bounds
    assert rows["codespec on"]["result_of_bound"] == pytest.approx(2.5 / 2.6, rel=1e-3)
    told = "\n".join(report({"sections": {"own": found}}))
    assert (
        "codespec on: result 2.50 × off" in told and "bound 2.60 (96% of it: passes; at lengths draft_model 2)" in told
    )
    assert "bound 2.60 (77% of it: less than 90%" in told
    assert rows["codespec suffix"]["predicted"] == pytest.approx(2.0)
    prediction = found["summary"]["prediction"]
    assert prediction["rows"] == 3 and "at worst (greedy, 1 at once, code" in told
    assert prediction["worst"] == f"greedy, 1 at once, {CODE}, codespec suffix"
    assert prediction["worst_error"] == pytest.approx(1 - 1.25 / 2.0)


def test_what_documents_keep_is_small_and_says_the_same() -> None:
    found = judged_section()
    found["prompts"]["greedy"]["numbers"] = {CODE: [1, 2]}
    found["summary"] = summarize(found)
    kept = condensed({"bench": "decode", "sections": {"own": found}})["sections"]["own"]
    assert "passes" not in kept and "numbers" not in kept["prompts"]["greedy"] and "passes" in found
    rows = kept["summary"]["cells"]["greedy, 1 at once"]["groups"][CODE]["rows"]
    assert set(rows["codespec on"]["times"]) == set(rows) - {"codespec on"}
    assert set(rows["codespec suffix"]["times"]) == {"codespec off"}
    assert rows["codespec on"]["times"]["codespec off"]["ratio"] == 2.5
    assert len(json.dumps(kept)) < len(json.dumps(found))


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
