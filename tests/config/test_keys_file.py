"""The keys file: hashes alone, written atomically for its owner, and one sentence for anything else in it."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from codespec.client.proof import hash_of_key
from codespec.errors import ConfigError
from codespec.server.keys_file import MAX_BYTES, MAX_KEYS, add_key, read_keys, revoke_key

GOOD = {"name": "ana", "sha256": "a" * 64, "created": "2026-11-26"}


def line(**facts: object) -> bytes:
    return json.dumps({**GOOD, **facts}).encode() + b"\n"


def test_a_key_is_kept_as_its_hash_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "keys"
    key = add_key(file, "ana")
    assert re.fullmatch(r"csk-[\w-]{43}", key) and key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (kept,) = read_keys(file)
    assert (kept.name, kept.sha256) == ("ana", hash_of_key(key))
    assert add_key(file, "bo") != key
    revoke_key(file, "ana")
    assert [one.name for one in read_keys(file)] == ["bo"]
    assert sorted(one.name for one in file.parent.iterdir()) == ["keys", "keys.lock"], "no parts are left"


def test_nobody_is_lost_when_many_add_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    threads = [threading.Thread(target=add_key, args=(file, f"n{number}")) for number in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(read_keys(file)) == 20


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "-a", "é", "x" * 65, "owner", "metrics", "a\0", 'a"', "../a"])
def test_a_name_is_a_plain_word(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        add_key(tmp_path / "keys", name)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{\n", "Line 1 of .* is not a JSON object"),
        (line() + b"\xff\xfe\n", "Line 2 of .* is not a JSON object"),
        (b"[1]\n", "is not a JSON object"),
        (b"[" * 100_000, "is not a JSON object"),
        (b'{"name": NaN}\n', "is not a JSON object"),
        (line(sha256="A" * 64), "no valid sha256"),
        (line(sha256=1), "no valid sha256"),
        (line(sha256="a" * 64 + "\n"), "no valid sha256"),
        (line(name="a\nb"), "no valid name"),
        (line(name=None), "no valid name"),
        (line(name="owner"), "has the reserved name owner"),
        (line(created="yesterday"), "no valid created"),
        (line(token_per_day=1), "unknown field 'token_per_day'"),
        (line() + line(sha256="b" * 64), "two keys with the name ana"),
        (line() + line(name="bo"), "two keys with the sha256"),
        (b"\n" * (MAX_BYTES + 1), "longer than 1024 KiB"),
        (b"".join(line(name=f"n{n}", sha256=f"{n:064x}") for n in range(MAX_KEYS + 1)), "more than 1000 keys"),
    ],
)
def test_a_broken_file_is_one_sentence(data: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(data)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=message) as raised:
        read_keys(file)
    assert len(str(raised.value)) < 400 + len(str(file)) and "\n" not in str(raised.value)


def test_a_file_of_the_most_keys_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\r\n" + b"\n".join(line(name=f"n{n}", sha256=f"{n:064x}") for n in range(MAX_KEYS)))
    assert len(read_keys(file)) == MAX_KEYS


def test_a_file_that_others_may_write_is_refused_and_links_are_read_but_not_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "keys", tmp_path / "link"
    add_key(file, "ana")
    link.symlink_to(file)
    assert read_keys(link) == read_keys(file)
    for change in (lambda: add_key(link, "bo"), lambda: revoke_key(link, "ana")):
        with pytest.raises(ConfigError, match="is a symbolic link"):
            change()
    file.chmod(0o620)
    with pytest.raises(ConfigError, match="Other users can write"):
        read_keys(file)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, tmp_path / "none", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(ConfigError, match="can't be read"):
            read_keys(place)
    with pytest.raises(ConfigError, match="no key named 'cy'"):
        add_key(tmp_path / "keys", "ana")
        revoke_key(tmp_path / "keys", "cy")
