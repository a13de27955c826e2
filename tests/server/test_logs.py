"""The daemon's output on a full disk, and long logs."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from codespec.server.logs import LogOutput, safe_output


class Disk:
    """Passes writes on, or fails like a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._write = os.write
        monkeypatch.setattr("codespec.server.logs.os.write", self.write)

    def write(self, number: int, data: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(number, data)


def on_file(stream: IO[bytes], output: LogOutput) -> Any:
    return output.wrap(open(stream.fileno(), "w", encoding="utf-8", closefd=False))  # it does not close the descriptor


def test_lines_are_lost_on_a_full_disk_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, output = Disk(monkeypatch), LogOutput()
    with (tmp_path / "log").open("a+b") as file:
        stream = on_file(file, output)
        print("one", file=stream)
        disk.full = True
        print("two", file=stream)
        print("three", file=stream)
        sentence = "The daemon's log can't be written (No space left on device): make room on its disk."
        assert output.warning == sentence
        disk.full = False
        assert output.warning == ""
        print("four", file=stream)
        message = (tmp_path / "log").read_text()
        assert message == "one\n\ncodespec: lines are missing here because they could not be written\nfour\n"


@pytest.mark.parametrize("mode", ["a+b", "wb"])
def test_a_long_log_keeps_its_newer_lines(mode: str, tmp_path: Path) -> None:
    output = LogOutput(most=1000)
    with (tmp_path / "log").open(mode) as file:
        stream, sizes = on_file(file, output), []
        for number in range(200):
            print(f"line {number}", file=stream)
            sizes.append((tmp_path / "log").stat().st_size)
    lines = (tmp_path / "log").read_text().splitlines()
    assert 500 < max(sizes) <= 1000, "and it was used"
    assert lines[0] == "codespec: older lines were dropped here" and lines[-1] == "line 199"
    assert lines[1:] == [f"line {number}" for number in range(201 - len(lines), 200)], "whole lines, and none between"


def test_what_is_no_file_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    former = sys.stdout
    with safe_output() as output:
        assert sys.stdout is former and output.warning == ""
        assert output.wrap(None) is None
        print("seen")
    assert capsys.readouterr().out == "seen\n"


def test_streams_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as own:
        monkeypatch.setattr(sys, "stdout", own)
        with pytest.raises(KeyError), safe_output():
            print("half a line \udcff", end="")
            raise KeyError
        assert sys.stdout is own and not own.closed
    assert (tmp_path / "log").read_text() == "half a line \\udcff"
