"""`codespec memory clear PATH` deletes a repository however its path is spelled, and says where there is none."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from codespec.cli.memory import run_clear
from codespec.errors import ConfigError
from codespec.memory.accepted import Accepted, Memory, texts_store


@pytest.mark.parametrize("spelled", ["repo", "repo/../repo", "link", "./repo/"])
def test_every_spelling_is_the_repository(spelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "repo").mkdir()
    (tmp_path / "link").symlink_to("repo")
    monkeypatch.chdir(tmp_path)
    memory = Memory(8)
    memory.accept(
        Accepted(str(tmp_path / "repo"), "a.py", "python", "def add(a, b):\n", "    return a + b\n", "")
    ).result()
    memory.close()
    assert len(list(texts_store().read_all([]))) == 1
    with pytest.raises(ConfigError, match="Nothing is kept of elsewhere: `codespec memory list` names what is"):
        run_clear(argparse.Namespace(repository="elsewhere"))
    assert run_clear(argparse.Namespace(repository=spelled)) == 0
    assert not list(texts_store().read_all([]))
