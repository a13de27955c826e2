"""A started daemon's log: a new file at each start, the former one kept, and its last line read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codespec.client import starter
from codespec.client.starter import last_line, open_log


def test_each_start_keeps_the_log_before_it(tmp_path: Path) -> None:
    log = tmp_path / "state" / "log"
    previous = tmp_path / "state" / "log.1"
    for number in range(3):
        with open_log(log) as out:
            out.write(b"codespec: ready\n" + str(number).encode())
    assert last_line(log) == "2" and previous.read_text() == "codespec: ready\n1"
    open_log(log).close()
    open_log(log).close()
    assert last_line(log) == "" and previous.read_text().endswith("2"), "one that says nothing replaces none"


def test_a_link_stays_where_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.symlink_to("/dev/full")
    for _ in range(2):
        with open_log(log) as out, pytest.raises(OSError, match="No space left"):
            out.write(b"x")
    assert log.is_symlink() and last_line(log) == ""


def test_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_bytes(b"Traceback\n  \xff\ncodespec: There is no model folder: give another.\n\n")
    assert last_line(log) == "There is no model folder: give another."
    monkeypatch.setattr(starter, "MAX_LOG_BYTES", 8)
    assert last_line(log) == ""
    log.unlink()
    os.mkfifo(log)
    assert last_line(log) == ""
