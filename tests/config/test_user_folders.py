"""Locations of the user's folders, and ownership checks of the state folder, the secret and sockets."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from codespec.errors import ConfigError
from codespec.user_folders import SECRET_BYTES, is_own_socket, own_folder, read_secret, socket_of

RACE = "from codespec.user_folders import read_secret; print(read_secret().hex())"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "codespec"


KINDS = ("state", "cache", "data", "config")
PRINT = f"for kind in {KINDS}: print(getattr(folders, kind + '_folder')())"


def folders_of(system: str, **variables: str) -> list[str]:
    """Return the user's folders as a process on another system would have them."""
    code = f"import sys; sys.platform = {system!r}; from codespec import user_folders as folders\n{PRINT}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment |= {"HOME": "/h", **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="the paths are spelled as on Linux")
def test_where_folders_are() -> None:
    assert folders_of("linux") == [
        "/h/.local/state/codespec",
        "/h/.cache/codespec",
        "/h/.local/share/codespec",
        "/h/.config/codespec",
    ]
    given = {f"XDG_{kind.upper()}_HOME": f"/x/{kind}" for kind in KINDS}
    assert folders_of("linux", **given) == folders_of("darwin", **given) == [f"/x/{kind}/codespec" for kind in KINDS]
    relative = folders_of("linux", XDG_STATE_HOME="here", XDG_CACHE_HOME="here")
    assert relative[:2] == ["here/codespec", "here/codespec"]
    assert "/h/Library/Caches/codespec" in folders_of("darwin")


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_both_are_made_for_this_user_alone(folder: Path) -> None:
    former = os.umask(0)
    try:
        secret = read_secret()
    finally:
        os.umask(former)
    assert (mode_of(folder), mode_of(folder / "secret")) == (0o700, 0o600)
    assert len(secret) == SECRET_BYTES and read_secret() == secret and list(folder.iterdir()) == [folder / "secret"]


def test_all_who_come_at_once_read_the_same(folder: Path) -> None:
    readers = [subprocess.Popen([sys.executable, "-c", RACE], stdout=subprocess.PIPE) for _ in range(6)]
    assert len({reader.communicate(timeout=60)[0] for reader in readers}) == 1
    assert list(folder.iterdir()) == [folder / "secret"] and not any(reader.returncode for reader in readers)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_a_folder_that_others_can_write_to_is_refused(mode: int, folder: Path) -> None:
    own_folder().chmod(mode)
    for ask in (own_folder, read_secret):
        with pytest.raises(ConfigError, match=f"can write to {folder}: run `chmod 700 {folder}`"):
            ask()
    folder.chmod(0o755)  # readable by others
    assert own_folder() == folder


def test_what_belongs_to_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_secret()
    own = folder / "secret", folder
    mine = os.geteuid()
    said_of = ("could have read the secret", "belongs to another user: set XDG_STATE_HOME")
    for theirs, message in zip(own, said_of, strict=True):
        given = {folder: mine, folder / "secret": mine, theirs: mine + 1}
        monkeypatch.setattr(Path, "stat", owned_by(Path.stat, given))
        monkeypatch.setattr(Path, "lstat", owned_by(Path.lstat, given))
        with pytest.raises(ConfigError, match=message):
            read_secret()
        monkeypatch.undo()
        monkeypatch.setenv("XDG_STATE_HOME", str(folder.parent))


def owned_by(look: Callable[..., os.stat_result], owners: dict[Path, int]) -> Callable[..., os.stat_result]:
    """Pretend other owners; only root could create such files."""

    def find(path: Path, **how: bool) -> os.stat_result:
        found = list(look(path, **how))
        found[stat.ST_UID] = owners.get(path, found[stat.ST_UID])
        return os.stat_result(found)

    return find


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o622])
def test_a_secret_that_others_may_know_is_refused(mode: int, folder: Path) -> None:
    read_secret()
    (folder / "secret").chmod(mode)
    with pytest.raises(ConfigError, match=f"could have read the secret in {folder / 'secret'}: delete it and restart"):
        read_secret()


def make_short(file: Path) -> None:
    file.touch(mode=0o600)


def make_long(file: Path) -> None:
    file.touch(mode=0o600)
    file.write_bytes(bytes(SECRET_BYTES + 1))


def make_pipe(file: Path) -> None:
    os.mkfifo(file, 0o600)


def make_link(file: Path) -> None:
    file.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [make_short, make_long, make_pipe, make_link])
def test_what_is_no_secret_is_one_sentence(make: Callable[[Path], None], folder: Path) -> None:
    make(own_folder() / "secret")
    with pytest.raises(ConfigError, match=r"secret.*: delete it and restart the daemon\.$"):
        read_secret()


def test_a_folder_that_can_not_be_made_is_one_sentence(folder: Path) -> None:
    folder.parent.write_text("a file")
    with pytest.raises(ConfigError, match=r"can't be created \(.*\): free disk space, or set XDG_STATE_HOME"):
        read_secret()


def test_whose_socket_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_folder())  # to keep the socket's name short
    place = socket_of(7)
    assert place == folder / "daemon-7.sock" and not is_own_socket(place)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("daemon-7.sock")
    assert is_own_socket(place)
    (folder / "link").symlink_to(place)
    (folder / "file").touch()
    assert not is_own_socket(folder / "link") and not is_own_socket(folder / "file")
    folder.chmod(0o777)
    assert not is_own_socket(place), "anybody can have put it there"
    folder.chmod(0o700)
    monkeypatch.setattr(Path, "lstat", owned_by(Path.lstat, {place: os.geteuid() + 1}))
    assert not is_own_socket(place)
