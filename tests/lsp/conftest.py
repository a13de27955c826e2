"""Folders that a started daemon keeps things in."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Where tiny daemons write down that they began."""
    folder = tmp_path / "begun"
    folder.mkdir()
    return folder
