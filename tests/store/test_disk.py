"""Download progress callbacks: the percentage never falls, and is reported only during the download."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from codespec.store import disk
from tests.store.conftest import REPOSITORY, Command


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_it_rises_and_never_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MEASURE_INTERVAL_S", 0.01)
    told: list[int] = []
    file = tmp_path / "part"
    with disk.watched(tmp_path, 200, told.append):
        wait_until(lambda: told == [0])
        file.write_bytes(b"x" * 80)
        wait_until(lambda: told == [0, 40])
        file.unlink()
        file.with_name("unpacked").write_bytes(b"x" * 500)
        wait_until(lambda: told == [0, 40, 100])
        file.with_name("unpacked").unlink()
        time.sleep(0.05)
    file.write_bytes(b"x" * 10)
    assert told == [0, 40, 100]


def test_it_ends_with_the_download_that_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cut"), disk.watched(tmp_path, 1, lambda percent: None):
        raise OSError("cut")


@pytest.mark.usefixtures("hub")
def test_the_command_prints_percents_where_they_are_asked_for(models: Command) -> None:
    done = models("pull", REPOSITORY, "--progress")
    assert done.returncode == 0, done.stderr
    percents = [int(found) for found in re.findall(rf"^codespec: {REPOSITORY}: (\d+) %$", done.stderr, re.MULTILINE)]
    assert percents == sorted(set(percents)) and percents[0] == 0 and percents[-1] <= 100


@pytest.mark.usefixtures("hub")
def test_nobody_else_sees_them(models: Command) -> None:
    assert " %" not in models("pull", REPOSITORY).stderr
