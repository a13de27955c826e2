"""`codespec check` as a user runs it: the table, the JSON, the exit codes, and no import of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from codespec.cli import main
from tests.pair.folders import TEXT, write_model

# The command without torch and transformers, as on an editor's machine.
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from codespec.cli import check
from codespec.cli.options import Parser
parser = Parser()
check.add_parser(parser.add_subparsers())
options = parser.parse_args(sys.argv[1:])
sys.exit(options.run(options))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder of models that also contains a user's file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TEXT)
    write_model(tmp_path / "target", "llama3")
    write_model(tmp_path / "drafter", "llama2", width=3)
    write_model(tmp_path / "lossy", "nfkc", width=3)
    return tmp_path


def test_each_finding_is_a_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--target", "./target", "--drafter", "./drafter"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("measured on 1 file, 24 kB (files here)\n")
    for name in ("target", "drafter", "size", "fill-in", "tokens", "drafts"):
        assert any(line.split()[:2] in (["ok", name], ["warning", name]) for line in out.splitlines()), name
    assert "verdict: works" in out


def test_json_is_one_object(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = here / "other.txt"
    file.write_text(TEXT[:9000])
    assert main(["check", "--target", "target", "--drafter", "drafter", "--json", "--files", str(file)]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["files"]["source"] == "named files" and value["files"]["names"] == [str(file)]
    drafts = value["perfect_drafts"][1]
    assert 0.8 <= drafts["survival"] < 1.0 and drafts["rounds"] > 500


def test_without_files_of_ones_own_the_standard_library_serves(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.py").unlink()
    assert main(["check", "--target", "target", "--drafter", "drafter", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files["source"] == "standard library" and 10 <= len(files["names"]) <= 40


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_a_pair_that_cannot_work_is_told_and_ends_with_2(
    extra: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--target", "target", "--drafter", "lossy", *extra]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("codespec: The drafter lossy can't be used, because the normalizer NFKC changes")
    assert err.count("\n") == 1 and "Traceback" not in err
    if extra:
        assert not json.loads(out)["ok"] and json.loads(out)["problem"] in err
    else:
        assert "verdict: can't work" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--target", "nowhere"], "There is no model folder nowhere: give a folder"),
        (["--target", "nobody/nothing"], "can't be downloaded from the hub"),
        (["--drafter", "none"], "No drafter is selected, so there is no pair to check: name a drafter"),
        (["--files", "gone.py"], "gone.py can't be read (No such file or directory): check the path."),
        (["--config", "gone.toml"], "The configuration file gone.toml can't be read"),
        (["--target", "empty"], "empty has no config.json: give a folder"),
    ],
)
def test_bad_input_is_one_sentence_and_2(
    words: list[str], sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty").mkdir()
    given = {"--target": "target", "--drafter": "drafter", **dict([words])}
    assert main(["check", *[word for pair in given.items() for word in pair]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and sentence in err and err.count("\n") == 1


def test_a_missing_starter_pair_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from codespec.api.config import SHIPPED

    assert main(["check", "--target", str(SHIPPED / "no such part"), "--drafter", "drafter"]) == 2
    assert "codespec's own model no such part is not installed: run `pip install ./weights`" in capsys.readouterr().err


def test_local_folders_need_no_torch(here: Path) -> None:
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "check", "--target", "target", "--drafter", "drafter", "--json"],
        cwd=here, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]
