"""A benchmark's files are complete, also if the command fails because a text differs from plain decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codespec_lab.bench import harness
from codespec_lab.bench.harness import Results, Scenario, first_difference, publish, refuse_mismatches, write_json

from codespec.cli import run_to_exit_code
from codespec.errors import ConfigError, MismatchError


@pytest.mark.parametrize(
    ("ids", "position"),
    [((1, 2, 3), None), ((4, 2, 3), 0), ((1, 2, 4), 2), ((1, 2), 2), ((1, 2, 3, 4), 3), ((), 0)],
)
def test_the_first_difference(ids: tuple[int, ...], position: int | None) -> None:
    assert first_difference(ids, [1, 2, 3]) == position


def test_the_first_is_named_and_the_others_are_counted() -> None:
    refuse_mismatches([])
    with pytest.raises(MismatchError, match=r"rules out \(a\.py, token 3\): report it with the output of"):
        refuse_mismatches(["a.py, token 3"])
    with pytest.raises(MismatchError, match=r"\(a\.py, token 3, and 2 more\)"):
        refuse_mismatches(["a.py, token 3", "b.py, token 1", "c.py, token 2"])


def test_figures_are_written_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"json": tmp_path / "out.json", "summary": tmp_path / "summary.json"}
    wrong, right = (
        Scenario(lambda bench: {}, lambda found: ["told"], mismatches=lambda found, names=names: names)
        for names in (["b.py"], [])
    )
    assert run_to_exit_code(lambda: publish(wrong, {"a": 1}, **files)) == 1
    for written in (files["json"], files["summary"]):
        assert json.loads(written.read_text(encoding="utf-8")) == {"a": 1}
    streams = capsys.readouterr()
    assert streams.out == "told\n"
    assert streams.err == (
        "codespec: A text differs from plain decoding, which exact mode rules out (b.py): report it with the output "
        "of `codespec doctor`.\n"
    )
    assert run_to_exit_code(lambda: publish(right, {"a": 1}, **files)) == 0


def test_a_file_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "results.json"
    written = Results(file, "decode")
    written.section("own", {"tokens": 4})["passes"].append(1)
    written.write()
    assert Results(file, "decode").section("own", {"tokens": 4})["passes"] == [1]
    with pytest.raises(ConfigError, match="another tokens: name another --json file"):
        Results(file, "decode").section("own", {"tokens": 5})
    monkeypatch.setattr(harness, "code_digest", lambda: "changed")
    with pytest.raises(ConfigError, match="another code"):
        Results(file, "decode").section("own", {"tokens": 4})
    written.values["sections"]["own"]["passes"].append(object())
    with pytest.raises(TypeError):
        written.write()
    assert json.loads(file.read_text(encoding="utf-8"))["sections"]["own"]["passes"] == [1]
    file.write_text("{}")
    with pytest.raises(ConfigError, match="holds no figures of `codespec bench decode`"):
        Results(file, "decode")


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be written to"):
        write_json(tmp_path / "file" / "out.json", {})
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "file")
    write_json(link, {"a": 1})
    assert link.is_symlink() and json.loads((tmp_path / "file").read_text(encoding="utf-8")) == {"a": 1}
