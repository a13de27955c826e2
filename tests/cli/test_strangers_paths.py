"""Paths that no file can have, in every setting that names one: a home folder that is not known, and a NUL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.forked import run_forked

BEGIN = ("serve", "--port", "0", "--drafter", "none", "--target")
FLAGS = ("socket", "keys", "token-file", "metrics-token-file")


def check(done: object, words: str) -> None:
    err = done.stderr  # type: ignore[attr-defined]
    assert (done.returncode, len(err.splitlines())) == (2, 1), err  # type: ignore[attr-defined]
    assert words in err


@pytest.mark.parametrize("flag", FLAGS)
def test_a_home_folder_that_is_not_known(flag: str, tmp_path: Path) -> None:
    done = run_forked(*BEGIN, tmp_path, *(() if flag == "socket" else ("--socket", "none")), f"--{flag}=~nobody-here/x")
    check(done, "~nobody-here/x begins with a home folder that is not known: give the whole path")


@pytest.mark.parametrize("flag", FLAGS)
def test_a_path_with_a_nul(flag: str, tmp_path: Path) -> None:
    settings = {"socket": "none", flag.replace("-", "_"): r"/a\u0000b"}
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    (tmp_path / "codespec.toml").write_text("\n".join(["[serve]", *lines, ""]))
    done = run_forked(*BEGIN, tmp_path, "--config", tmp_path / "codespec.toml")
    check(done, r"'/a\x00b' is no path")


@pytest.mark.parametrize("words", [("keys", "list", "--keys"), ("models", "pull")])
def test_commands(words: tuple[str, ...]) -> None:
    check(run_forked(*words, "~nobody-here/x.gguf"), "begins with a home folder that is not known")
