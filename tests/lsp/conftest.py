"""Fixtures for the folders of a started daemon."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test its own state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the file in which tiny daemons record their start."""
    folder = tmp_path / "begun"
    folder.mkdir()
    return folder
