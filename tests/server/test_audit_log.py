"""The audit log: one line a request with names and counts, and nothing that a client wrote."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from codespec.errors import ConfigError
from codespec.keys_file import add_key
from codespec.server.accounts import Keyring
from codespec.server.loading import Loaded
from codespec.server.logs import AuditLog
from codespec.server.security import Access
from tests.server.daemons import serving_load, wait_for
from tests.server.fakes import FakeEngine
from tests.server.test_jobs import PATH, body

FIELDS = ["time", "key", "method", "route", "language", "bytes", "prompt_tokens", "tokens", "ms", "status", "outcome"]
SECRET = "SECRETTEXT"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line]


def test_each_request_is_a_line_without_text(tmp_path: Path) -> None:
    key, file = add_key(tmp_path / "keys", "ana", at_once=1), tmp_path / "log"
    access = Access(keyring=Keyring(tmp_path / "keys"))
    given = {"Authorization": f"Bearer {key}"}
    asked = body(SECRET, max_tokens=5, path=f"/{SECRET}.py", document=SECRET, language=SECRET, trigger=SECRET)
    load = lambda _: Loaded(FakeEngine(), "toy", 512, 4)  # noqa: E731
    with serving_load(load, access=access, audit_log=AuditLog(file)) as served:
        assert served.post(PATH, asked, **given).status == 200
        assert served.post("/v1/completions", {"prompt": [SECRET, SECRET]}, **given).status == 429
        assert served.post(PATH, body(SECRET, **{SECRET: 1}), **given).status == 400
        assert served.post(f"/{SECRET}?{SECRET}", {}, **given).status == 404
        assert served.post(PATH, asked, Authorization=f"Bearer {SECRET}").status == 401
        assert served.post(PATH, body("REFUSED"), **given).status == 400
        for path in ("/health", "/ready", "/"):
            assert served.ask("GET", path).status == 200, "probes leave no line"
        assert wait_for(lambda: len(lines(file)) == 6)
    found = lines(file)
    assert [list(one) for one in found] == [FIELDS] * 6
    told = [(one["key"], one["route"], one["language"], one["tokens"], one["status"], one["outcome"]) for one in found]
    assert told == [
        ("ana", PATH, "python", 5, 200, "ok"),
        ("ana", "/v1/completions", "unknown", 0, 429, "refused"),
        ("ana", PATH, "", 0, 400, "refused"),
        ("ana", "-", "", 0, 404, "refused"),
        ("", PATH, "", 0, 401, "refused"),
        ("ana", PATH, "unknown", 0, 400, "refused"),
    ]
    assert found[0]["prompt_tokens"] == len(SECRET) and found[0]["bytes"] == len(json.dumps(asked))
    text = file.read_text()
    assert SECRET not in text and key not in text and file.stat().st_mode & 0o777 == 0o600


def test_who_leaves_is_told_apart(tmp_path: Path) -> None:
    file, engine = tmp_path / "log", FakeEngine(pause=0.01)
    with serving_load(lambda _: Loaded(engine, "toy", 512, 4), audit_log=AuditLog(file)) as served:
        connection = served.open(PATH, body("abc", max_tokens=400))
        assert connection.getresponse().read1(10)
        connection.close()
        assert served.idle() and wait_for(lambda: bool(lines(file)))
        (line,) = lines(file)
        assert (line["status"], line["outcome"]) == (499, "disconnected") and 0 < line["tokens"] < 400
        older = served.open(PATH, body("abc", max_tokens=400, document="d"))
        assert older.getresponse().read1(10)
        assert served.post(PATH, body("abcd", max_tokens=2, document="d")).status == 200
        assert wait_for(lambda: sorted(one["outcome"] for one in lines(file)[1:]) == ["ok", "superseded"])
        older.close()


def test_a_full_disk_stops_no_answer_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write, full = tmp_path / "log", os.write, [True]
    log = AuditLog(file)

    def limited(number: int, data: bytes) -> int:
        if number != log._number or not full[0]:
            return write(number, data)
        if data.startswith(b"{") and len(data) > 40:
            return write(number, data[:7])  # the disk is full within the line
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", limited)
    with serving_load(lambda _: Loaded(FakeEngine(), "toy", 512, 4), audit_log=log) as served:
        for _ in range(3):
            assert served.post(PATH, body("x")).status == 200
        assert wait_for(lambda: log.lost == 3)
        warning = served.ask("GET", "/health").json["warning"]
        why = "No space left on device; 3 lines lost"
        assert warning == f"The audit log can't be written ({why}): make room on its disk."
        full[0] = False
        assert served.post(PATH, body("x")).status == 200
        assert wait_for(lambda: served.ask("GET", "/health").json["warning"] == "")
    whole = [line for line in file.read_text().splitlines() if line.endswith("}")]
    assert json.loads(whole[-1])["lost"] == 3, "the next line has the count, on a line of its own"


def test_the_system_moves_it_away(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = AuditLog(file)
    log.write({"n": 1})
    file.rename(tmp_path / "log.1")
    log.write({"n": 2})
    log.reopen()
    log.write({"n": 3})
    assert (lines(tmp_path / "log.1"), lines(file)) == ([{"n": 1}, {"n": 2}], [{"n": 3}])
    file.unlink()
    (tmp_path / "log").mkdir()
    log.reopen()
    assert "can't be reopened" in log.fault


def test_only_a_file_of_its_own_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path / "pipe", tmp_path / "link", tmp_path, Path("/dev/full"), tmp_path / "none" / "log"):
        with pytest.raises(ConfigError, match="can't be opened"):
            AuditLog(place)
    assert not (tmp_path / "elsewhere").exists()
