"""`codespec bench decode` from the command line to tables and JSON, with tiny random models."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from codespec_lab.bench.decode import hugging_face, scenario
from codespec_lab.bench.decode.contest import Answer
from codespec_lab.bench.decode.passes import LATE
from codespec_lab.bench.harness import Deadline
from codespec_lab.corpus.documents import Document, write_documents

from codespec.store.machine import processor
from tests.cli.conftest import Command, Models, command, models, plain_environment
from tests.engine.test_planted_faults import correction_dropped

__all__ = ["command", "models", "plain_environment"]

NAMES = {
    "codespec off",
    "codespec on",
    "codespec on, never right",
    "codespec suffix",
    "codespec draft_model",
    "transformers",
}
ONE_PROMPT = {"transformers assisted", "transformers prompt lookup"}
SMALL = ("--limit", "2", "--tokens", "8", "--concurrency", "1,2", "--repeats", "1")


@pytest.fixture
def words(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | Path]:
    """The benchmark on two projects and some prompts without this machine's library; no measurement takes long."""
    monkeypatch.setattr("codespec_lab.bench.steps.ALL_SECONDS", 0.0)
    monkeypatch.setattr("codespec_lab.bench.steps.SWEEP_SECONDS", 0.05)
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", list)
    monkeypatch.setattr(
        "codespec_lab.bench.harness.code_digest", lambda: "the code"
    )  # the code may change while the tests run
    monkeypatch.setattr("codespec_lab.bench.decode.passes.CALIBRATION_TOKENS", 3)
    monkeypatch.setattr("codespec_lab.bench.decode.codespec_engine.FIRST_TABLE_SECONDS", 0.05)
    monkeypatch.setattr("codespec_lab.bench.decode.codespec_engine.PASS_TABLE_SECONDS", 0.0)
    monkeypatch.setattr("codespec_lab.bench.decode.contest.FLOAT_DTYPES", ("float32",))
    for module in ("codespec_engine", "hugging_face"):
        monkeypatch.setattr(f"codespec_lab.bench.decode.{module}.thread_counts", lambda device: (1,))
    monkeypatch.setattr("codespec_lab.bench.decode.hugging_face.ASSISTANT_TOKENS", (4,))
    monkeypatch.setattr("codespec_lab.bench.decode.hugging_face.LOOKUP_TOKENS", (4,))
    text = "".join(f"def area{i}(width):\n    result = width * {i}\n    return result\n\n\n" for i in range(20))
    documents = [Document(name, f"{name}.py", "python", text.replace("area", name)) for name in ("disc", "cube")]
    write_documents(tmp_path / "held_out.jsonl.gz", documents)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"def size{n}(box):\n"}) + "\n" for n in range(9)))
    sources: list[str | Path] = ["--held-out", tmp_path / "held_out.jsonl.gz", "--prompts", prompts]
    return ["bench", "decode", *models.flags, *sources]


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["sections"]["own"]
    return found


def test_the_whole_bench_and_going_on_with_it(words: list[str | Path], command: Command, tmp_path: Path) -> None:
    out = tmp_path / "new" / "decode.json"
    done = command(*words, *SMALL, "--json", out)
    assert done.code == 0, done.err
    section = read(out)
    assert section["configuration"]["machine"]["processor"] == processor().label and processor().label in done.out
    assert str(tmp_path) not in out.read_text(encoding="utf-8")
    check_cells(section)
    assert section["prompts"] == {"prompts": 1, "projects": 1} and "NOT EQUAL" not in done.out
    assert "codespec on, × others: codespec off " in done.out and "greedy, 1 at once, 1 prompts of held-out" in done.out
    assert "llama.cpp: the target was not read from a GGUF file: name" in done.out and "measure [" in done.err

    small = tmp_path / "summary.json"
    fewer = ("--concurrency", "1", "--sampling", "greedy", "--repeats", "2")
    more = command(*words, *SMALL[:4], *fewer, "--json", out, "--summary", small)
    assert more.code == 0, more.err
    kept = read(small)
    assert "passes" not in kept and kept["summary"].keys() == read(out)["summary"].keys()
    later = read(out)
    assert later["passes"][:4] == section["passes"] and len(later["passes"]) == 5
    assert (later["passes"][4]["sampling"], later["passes"][4]["repeat"]) == ("greedy", 1)
    assert later["contestants"] == section["contestants"]
    other = command(*words, *SMALL[:2], "--tokens", "9", "--json", out)
    other.check_mistake("measured with another tokens", "delete this one")
    assert read(out) == later


def test_an_interrupted_run_keeps_its_passes_and_their_summary(
    words: list[str | Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, passes = scenario.run_pass, count()

    def interrupted(*given: Any) -> Any:
        if next(passes):
            raise KeyboardInterrupt
        return run(*given)

    monkeypatch.setattr(scenario, "run_pass", interrupted)
    out = tmp_path / "decode.json"
    quick = ("--limit", "1", "--tokens", "6", "--concurrency", "1", "--repeats", "2", "--sampling", "greedy")
    assert command(*words, *quick, "--json", out).code == 130
    section = read(out)
    assert len(section["passes"]) == 1 and section["summary"]["cells"]["greedy, 1 at once"]["repeats"] == 1


def test_calibration_takes_half_of_the_minutes_at_most(
    words: list[str | Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any time only the first contestant is calibrated; a later run calibrates the others."""
    monkeypatch.setattr(scenario, "Deadline", lambda minutes: Deadline(minutes and 0.0))
    out = tmp_path / "decode.json"
    quick = ("--limit", "1", "--tokens", "6", "--concurrency", "1", "--repeats", "1", "--sampling", "greedy")
    assert command(*words, *quick, "--json", out, "--minutes", "1").code == 0
    told = read(out)["contestants"]
    assert "fastest" in told["codespec off"] and told["codespec on"] == told["transformers"] == {"absent": LATE}
    assert command(*words, *quick, "--json", out).code == 0
    again = read(out)
    assert again["contestants"]["codespec off"] == told["codespec off"]
    rows = again["summary"]["cells"]["greedy, 1 at once"]["kinds"]["all"]["rows"]
    assert {"codespec off", "codespec on", "transformers"} <= set(rows)


def check_cells(section: dict[str, Any]) -> None:
    """Every contestant is in every cell, writes the text of plain decoding, and has consistent figures."""
    assert set(section["summary"]["cells"]) == {
        f"{sampling}, {count} at once" for sampling in ("greedy", "sampled") for count in (1, 2)
    }
    for cell, values in section["summary"]["cells"].items():
        figures, alone = values["kinds"]["all"], ", 1 at once" in cell
        assert set(values["kinds"]) == ({"all", "prompts", "projects"} if alone else {"all"})
        assert figures["prompts"] == (2 if alone else 4)
        assert set(figures["rows"]) | set(figures["failed"]) == NAMES | (ONE_PROMPT if alone else set())
        assert set(figures["failed"]) <= {"transformers assisted"} and ("sampled" in cell or not figures["failed"])
        for name, row in figures["rows"].items():
            assert row["tokens_per_second"] > 0 and row["equal"] == row["compared"], (cell, name)
            comparable = "greedy" in cell or name.startswith("codespec")
            assert row["compared"] == (row["texts"] if comparable else 0)
            assert sum(row["split"].values()) == pytest.approx(1.0 if name.startswith("codespec") else 0.0, abs=0.05)
            assert 0 < row["tokens_a_text"] <= 8 and ("codespec off" in row["times"]) == (name != "codespec off")
        on, off = figures["rows"]["codespec on"], figures["rows"]["codespec off"]
        never = figures["rows"]["codespec on, never right"]
        assert off["drafted_a_round"] == 0 and on["drafted_a_round"] > 0
        assert never["drafted_a_round"] > 0 == never["acceptance"]
        assert set(on["times"]) == set(figures["rows"]) - {"codespec on"} and on["predicted"] > 0
    for one in section["passes"]:
        for record in (record for records in one["records"].values() for record in records if "seconds" in record):
            assert (
                record["tokens"] + record["prompts"] <= record["written"]
            )  # the first tokens do not count as decoding


def test_a_wrong_text_of_a_peer_is_not_equal(
    words: list[str | Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = hugging_face.TransformersContestant.answer

    def lie(self: hugging_face.TransformersContestant, *given: Any) -> Answer:
        told = answer(self, *given)
        if self.name == hugging_face.LOOKUP:
            told.ids = [(*ids[:-1], (ids[-1] + 1) % 7) for ids in told.ids]
        return told

    monkeypatch.setattr(hugging_face.TransformersContestant, "answer", lie)
    out = tmp_path / "decode.json"
    quick = ("--limit", "1", "--tokens", "6", "--concurrency", "1", "--repeats", "1", "--sampling", "greedy")
    done = command(*words, *quick, "--json", out)
    assert done.code == 0, done.err
    rows = read(out)["summary"]["cells"]["greedy, 1 at once"]["kinds"]["all"]["rows"]
    assert rows["transformers prompt lookup"]["equal"] == 0 < rows["transformers prompt lookup"]["compared"]
    assert all(row["equal"] == row["compared"] for name, row in rows.items() if name != "transformers prompt lookup")
    assert "transformers prompt lookup: NOT EQUAL to plain in" in done.out


def test_a_wrong_text_of_ours_is_an_error(
    words: list[str | Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejected token is committed: figures are written and shown, then the command fails."""
    correction_dropped(monkeypatch)
    out = tmp_path / "decode.json"
    quick = ("--limit", "1", "--tokens", "6", "--concurrency", "1", "--repeats", "1", "--sampling", "greedy")
    done = command(*words, *quick, "--json", out)
    assert done.code == 1, done.err
    rows = read(out)["summary"]["cells"]["greedy, 1 at once"]["kinds"]["all"]["rows"]
    assert rows["codespec on"]["equal"] < rows["codespec on"]["compared"] and "NOT EQUAL to plain in" in done.out
    message = done.err.splitlines()[-1]
    assert message.startswith("codespec: A text differs from plain decoding, which exact mode rules out (codespec ")
    assert message.endswith("report it with the output of `codespec doctor`.") and "greedy, 1 at once, own: " in message


def test_native_is_compared_with_itself_and_others_with_floats(
    words: list[str | Path], command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "decode.json"
    quick = ("--limit", "1", "--tokens", "6", "--concurrency", "1,2", "--repeats", "1", "--sampling", "greedy")
    done = command(*words, *quick, "--dtype", "native", "--json", out)
    assert done.code == 0, done.err
    section = read(out)
    assert section["configuration"]["formats"] == {"target": ["native"], "drafter": ["float32", "native"]}
    for name, facts in section["contestants"].items():
        formats = {variant["dtype"] for variant in facts.get("fastest", {}).values()}
        assert formats <= {"native" if name.startswith("codespec") else "float32"}
    for cell in section["summary"]["cells"].values():
        for name, row in cell["kinds"]["all"]["rows"].items():
            assert row["equal"] == row["compared"] > 0, name
    assert "one: native, 1 thread(s)" in done.out
    assert any("native, drafter" in name for name in section["costs"])
    again = command(*words, *quick, "--json", out)
    again.check_mistake("measured with another formats")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--held-out", "none.gz"], "There is no corpus at none.gz"),
        (["--prompts", "none.jsonl"], "The prompts file none.jsonl can't be read"),
        (["--threads", "2"], "leave out --threads and --mode"),
        (["--mode", "fast"], "leave out --threads and --mode"),
        (["--dtype", "int3"], "invalid choice"),
        (["--repeats", "0"], "must be a whole number of 1 or more"),
        (["--concurrency", "1,x"], "'x' must be a whole number of 1 or more"),
        (["--device", "cuda"], "--device cpu"),
    ],
)
def test_mistakes_are_one_sentence(more: list[str], sentence: str, words: list[str | Path], command: Command) -> None:
    done = command(*words, *more)
    assert done.code == 2 and "Traceback" not in done.err, done.err
    assert sentence in done.err.splitlines()[-1] and done.err.splitlines()[-1].endswith(".")
