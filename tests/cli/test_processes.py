"""`codespec` as a real process: it streams, and ends quietly if it is stopped or its reader is gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Models
from tests.cli.processes import SECONDS, run, start, start_python, user_environment


def long_text(models: Models, source: Path) -> list[str]:
    """Return the words of a completion that takes seconds: target only, one token per round."""
    return ["complete", f"{source}:11:20", *models.flags, "--shape", "raw", "--max-tokens", "1800", "--no-speculation"]


def test_text_is_streamed_and_an_interrupt_ends_it(light_models: Models, source: Path) -> None:
    with start(*long_text(light_models, source)) as process:
        assert process.stdout and process.stderr
        first = process.stdout.read(20)
        assert len(first) == 20 and process.poll() is None  # it is shown before the rest is written
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=SECONDS)
    assert (process.returncode, complaints) == (130, b"")
    assert len(rest) < 1800


def test_a_reader_that_goes_ends_it_quietly(light_models: Models, source: Path) -> None:
    with start(*long_text(light_models, source)) as process:
        assert process.stdout and process.stderr
        process.stdout.read(1)
        process.stdout.close()
        complaints = process.stderr.read()
        assert process.wait(SECONDS) == 0
    assert complaints == b""


def test_help_into_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with start("--help", stdout=writer) as process:
        os.close(writer)
        assert process.communicate(timeout=SECONDS)[1] == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("device", "code", "complaint"),
    [("/dev/null", 0, b""), ("/dev/full", 2, b"codespec: The output can't be written (no space left on the device)")],
)
def test_a_full_disk_is_one_sentence(device: str, code: int, complaint: bytes) -> None:
    with open(device, "wb") as out, start_python("-c", printing("text"), stdout=out) as process:
        complaints = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == code
    assert complaints.startswith(complaint) and complaints.count(b"\n") == bool(complaint)


def test_a_terminal_without_utf_8_gets_escapes() -> None:
    with start_python("-c", printing("2 ×"), env=user_environment(PYTHONIOENCODING="ascii")) as process:
        assert process.communicate(timeout=SECONDS) == (b"2 \\xd7\n", b"")
    assert process.returncode == 0


def printing(text: str) -> str:
    """Return a program that prints a text like a command."""
    return f"""
from codespec.cli import run_to_exit_code
def command():
    print({text!r})
    return 0
raise SystemExit(run_to_exit_code(command))
"""


def test_a_model_that_does_not_fit_is_one_line_on_the_real_stderr(models: Models, source: Path, tmp_path: Path) -> None:
    """Libraries that log during loading would show up here."""
    folder = Path(shutil.copytree(models.target, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    done = run("complete", f"{source}:1:1", "--target", folder, "--drafter", "none")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("codespec: ") and str(folder) in done.stderr
