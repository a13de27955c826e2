"""Files that a user names by mistake (devices, pipes, huge files, impossible paths), and closed standard streams."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from codespec.api.config import resolve_serve
from codespec.api.settings import Settings
from codespec.cli import run_to_exit_code
from codespec.cli.complete import read_source
from codespec.errors import ConfigError, RequestError
from tests.server.forked import run_forked


def odd(tmp_path: Path, kind: str) -> Path:
    file = tmp_path / "odd"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, 1 << 34)  # sparse
    return file


@pytest.mark.parametrize("kind", ["fifo", "device", "sparse"])
def test_a_file_that_never_ends_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.files.MAX_NAMED", 1 << 20)
    file, why = odd(tmp_path, kind), r"not a regular file|longer than 1024 KiB"
    with pytest.raises(RequestError, match=why):
        read_source(file)
    with pytest.raises(ConfigError, match=why):
        resolve_serve({}, Settings(file))


def test_a_number_with_too_many_digits_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "codespec.toml"
    file.write_text(f"[serve]\nport = {'9' * 5000}\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        resolve_serve({}, Settings(file))


@pytest.mark.parametrize(("code", "why"), [(errno.EDQUOT, "quota"), (errno.EFBIG, "limit on file sizes")])
def test_other_ways_in_which_a_disk_is_full(code: int, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise OSError(code, "full", "/x/y")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codespec.cli._discard", lambda _stream: None)
        assert run_to_exit_code(command) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_empty_ones(closed: str) -> None:
    """Nothing opened later may take the place of a standard stream."""
    script = "import os,sys;from codespec.cli import run_to_exit_code as run;"
    script += "run(lambda:print(1)or print(2,file=sys.stderr)or len(sys.stdin.read(1)));"
    script += "os._exit(os.open(os.devnull,0)<=2 or 7)"
    found = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, script], capture_output=True, stdin=subprocess.DEVNULL
    )
    assert (found.returncode, b"Traceback" in found.stderr) == (7, False)


BEGIN = ("serve", "--port", "0", "--drafter", "none", "--target")
FLAGS = ("socket", "keys", "token-file", "metrics-token-file")


def check(done: object, words: str) -> None:
    err = done.stderr  # type: ignore[attr-defined]
    assert (done.returncode, len(err.splitlines())) == (2, 1), err  # type: ignore[attr-defined]
    assert words in err


@pytest.mark.parametrize("flag", FLAGS)
def test_a_home_folder_that_is_not_known(flag: str, tmp_path: Path) -> None:
    done = run_forked(*BEGIN, tmp_path, *(() if flag == "socket" else ("--socket", "none")), f"--{flag}=~nobody-here/x")
    check(done, "~nobody-here/x begins with an unknown home folder: give the absolute path")


@pytest.mark.parametrize("flag", FLAGS)
def test_a_path_with_a_nul(flag: str, tmp_path: Path) -> None:
    settings = {"socket": "none", flag.replace("-", "_"): r"/a\u0000b"}
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    (tmp_path / "codespec.toml").write_text("\n".join(["[serve]", *lines, ""]))
    done = run_forked(*BEGIN, tmp_path, "--config", tmp_path / "codespec.toml")
    check(done, r"'/a\x00b' is not a valid path")


@pytest.mark.parametrize("words", [("keys", "list", "--keys"), ("models", "pull")])
def test_commands(words: tuple[str, ...]) -> None:
    check(run_forked(*words, "~nobody-here/x.gguf"), "begins with an unknown home folder")
