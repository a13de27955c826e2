"""The command line of a daemon started in another folder: paths keep their meaning, and names stay names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from codespec.client.starter import absolute_environment, is_path, with_absolute_paths
from codespec.errors import DaemonError
from codespec.store.catalogue import is_hub_id

NAMES = ["owner/model", "Owner/Model-1.5b", "a/b.c"]
PATHS = [
    "./model",
    "../model",
    "./owner/model",
    ".hidden",
    "a/b/c",
    "a/",
    "m.gguf",
    "owner/m.GGUF",
    "/a/b",
    ".\\model",
    "a/.b",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_paths_are_made_whole(here: Path) -> None:
    words = ["--target", "./own", "--drafter=../small", "--threads", "2", "--config", "c.toml", "--token-file=t"]
    parent = here.parent
    whole = ["--target", f"{here}/own", f"--drafter={parent}/small", "--threads", "2", "--config", f"{here}/c.toml"]
    assert with_absolute_paths(words) == (*whole, f"--token-file={here}/t")


def test_names_and_whole_paths_stay(here: Path) -> None:
    (here / "owner" / "model").mkdir(parents=True)
    (here / "starter").mkdir()
    for words in (
        ("--target", "owner/model", "--drafter", "none"),
        ("--target=owner/model", "--model", "starter"),
        ("--target", "starter", "--drafter", "smollm2-135m"),
        ("--target", "/a/b", "--config", "~/c.toml", "--socket", "none"),
        ("--socket=auto", "--target"),
    ):
        assert with_absolute_paths(words) == words


def test_variables_as_well(here: Path) -> None:
    given = {"CODESPEC_TARGET": "./m", "CODESPEC_DRAFTER": "none", "CODESPEC_SERVE_TOKEN_FILE": "t", "OTHER": "./x"}
    found = absolute_environment({**given, "XDG_STATE_HOME": "s", "CODESPEC_SERVE_SOCKET": "/a/s"})
    whole = {"CODESPEC_TARGET": f"{here}/m", "CODESPEC_SERVE_TOKEN_FILE": f"{here}/t", "XDG_STATE_HOME": f"{here}/s"}
    assert found == {**given, **whole, "CODESPEC_SERVE_SOCKET": "/a/s"}


@pytest.mark.parametrize("model", [*NAMES, *PATHS])
def test_the_daemon_has_it_the_same(model: str) -> None:
    assert is_path(model) is (model in PATHS) is not is_hub_id(model)


def test_a_folder_that_is_gone_is_one_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    shutil.rmtree(here / "gone")
    with pytest.raises(
        DaemonError, match=r"^\./m is relative to a folder that no longer exists .*: give an absolute path"
    ):
        with_absolute_paths(["--target", "./m"])
    assert with_absolute_paths(["--target", "owner/model"]) == ("--target", "owner/model")
