"""Keys at the daemon: who is let in where, usage by key, and changes of the file while it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from codespec.client.proof import PATH as PROOF
from codespec.client.proof import Keys, challenge, from_key_hash, hash_of_key, is_proven, new_nonce
from codespec.server.daemon import Loaded
from codespec.server.keys_file import Keyring, add_key, revoke_key
from codespec.server.middleware import Access
from tests.cli.processes import TOKEN
from tests.server.daemons import Served, serving_load, wait_for
from tests.server.fakes import FakeEngine
from tests.server.test_jobs import PATH, body

METRICS_TOKEN = "a-token-for-metrics-alone"


class Team:
    """A daemon with keys for ana and bo, an owner's token, and a token for metrics."""

    def __init__(self, served: Served, file: Path, keys: dict[str, str]) -> None:
        self.served, self.file, self.keys = served, file, keys

    def post(self, given: str, path: str = PATH, what: Any = None) -> Any:
        return self.served.post(path, body("abc") if what is None else what, **bearer(given))

    def get(self, given: str, path: str) -> Any:
        return self.served.ask("GET", path, **bearer(given))


def bearer(given: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {given}"} if given else {}


@contextmanager
def team(folder: Path, engine: Any = None, queue: int = 64, token: str = TOKEN) -> Iterator[Team]:
    file, fake = folder / "keys", FakeEngine() if engine is None else engine
    keys = {name: add_key(file, name) for name in ("ana", "bo")}
    access = Access(token, METRICS_TOKEN, Keyring(file))
    with serving_load(lambda _: Loaded.of(fake, "toy", 512, fake.queue.slots), queue, access=access) as served:
        yield Team(served, file, keys)


def test_a_key_opens_completions_and_nothing_of_the_owner(tmp_path: Path) -> None:
    with team(tmp_path) as own:
        key = own.keys["ana"]
        assert own.post(key).status == own.post(TOKEN).status == 200
        assert own.get(key, "/v1/models").status == own.get(key, "/health").status == 200
        for wrong in ("", key[:-1], key.upper(), f"{key}x", "csk-", key.removeprefix("csk-"), METRICS_TOKEN):
            assert own.post(wrong).status == 401, wrong
        reply = own.get(key, "/metrics")
        assert reply.status == 403 and "owner's token" in reply.json["error"]["message"]
        hashed = hash_of_key(key)
        assert own.post(hashed).status == 401, "who reads the file has no key"


def test_a_header_that_is_no_key_is_refused(tmp_path: Path) -> None:
    with team(tmp_path) as own:
        key = own.keys["ana"]
        for header in (f"Basic {key}", key, f"Bearer {key} {key}", "Bearer \xe9\xff", "Bearer " + "x" * 4000):
            assert own.served.post(PATH, body("x"), Authorization=header).status == 401, header


def test_metrics_have_a_token_of_their_own(tmp_path: Path) -> None:
    with team(tmp_path) as own:
        assert own.get(METRICS_TOKEN, "/metrics").status == own.get(TOKEN, "/metrics").status == 200
        assert own.get("", "/metrics").status == 401
        for path in ("/v1/codespec/stats", "/v1/models", "/health"):
            assert own.get(METRICS_TOKEN, path).status == 401, path
    with serving_load(lambda _: Loaded.of(FakeEngine(), "toy", 512, 4), access=Access("", METRICS_TOKEN)) as served:
        assert served.ask("GET", "/metrics").status == 401
        assert served.ask("GET", "/metrics", **bearer(METRICS_TOKEN)).status == 200
        assert served.post(PATH, body("x")).status == 200, "only the metrics are closed"


def test_probes_are_open_and_say_nothing(tmp_path: Path) -> None:
    with team(tmp_path) as own:
        assert (own.get("", "/health").json, own.get("", "/ready").json) == ({"status": "alive"}, {"status": "ready"})
        assert own.get("wrong", "/health").status == 401 and own.get("wrong", "/ready").status == 200
        assert own.get(TOKEN, "/health").json["target"] == "toy"
        own.served.daemon.stopping = True
        reply = own.get("", "/ready")
        assert reply.status == 503 and reply.headers["Retry-After"] == "1" and own.get("", "/health").status == 200
        own.served.daemon.stopping = False


def test_who_leaves_early_has_used_what_was_written(tmp_path: Path) -> None:
    with team(tmp_path, engine=FakeEngine(pause=0.01)) as own:
        connection = own.served.open_as(PATH, body("abc", max_tokens=400), bearer(own.keys["ana"]))
        reply = connection.getresponse()
        seen = b""
        while seen.count(b"event: text") < 2:
            seen += reply.read1(200)
        connection.close()
        assert own.served.idle()
        account = own.served.daemon.keyring.find(own.keys["ana"])  # type: ignore[union-attr]
        assert account is not None and wait_for(lambda: not account.open)
        assert 2 <= account.tokens < 400


def test_a_revoked_key_ends_its_streams_and_a_new_one_works_without_a_restart(tmp_path: Path) -> None:
    with team(tmp_path, engine=FakeEngine(pause=0.01)) as own:
        asked = body("abc", max_tokens=400)
        streams = {name: own.served.open_as(PATH, asked, bearer(key)) for name, key in own.keys.items()}
        replies = {name: one.getresponse() for name, one in streams.items()}
        revoke_key(own.file, "ana")
        text = replies["ana"].read().decode()
        assert text.count("event: error") == 1 and "'ana' was revoked" in text and "event: done" not in text
        assert wait_for(lambda: own.post(own.keys["ana"]).status == 401)
        fresh = add_key(own.file, "cy")
        assert wait_for(lambda: own.post(fresh).status == 200)
        assert "event: done" in replies["bo"].read().decode()
        for one in streams.values():
            one.close()


def test_a_broken_file_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    with team(tmp_path) as own:
        good = own.file.read_bytes()
        for bad in (b"{", b"x" * (2 << 20), None):
            own.file.unlink() if bad is None else own.file.write_bytes(bad)
            assert wait_for(lambda: "stay valid" in own.get(TOKEN, "/health").json["warning"])
            assert own.post(own.keys["ana"]).status == 200
            own.file.write_bytes(good)
            own.file.chmod(0o600)
            assert wait_for(lambda: own.get(TOKEN, "/health").json["warning"] == "")


def test_usage_by_key(tmp_path: Path) -> None:
    with team(tmp_path, queue=0) as own:
        assert own.post(own.keys["ana"], what=body("abc", max_tokens=7)).status == 200
        assert own.post(own.keys["ana"], "/v1/completions", {"prompt": ["a"] * 5, "max_tokens": 0}).status == 429
        assert own.served.idle()
        text = own.get(METRICS_TOKEN, "/metrics").body.decode()
        for line in (
            'codespec:key_generation_tokens_total{key="ana"} 7.0',
            'codespec:key_requests_total{key="ana"} 2.0',
            'codespec:key_requests_total{key="bo"} 0.0',
            'codespec:key_requests_refused_total{key="ana"} 1.0',
            'codespec:key_requests_open{key="ana"} 0.0',
        ):
            assert line in text, text
        assert own.keys["ana"] not in text and hash_of_key(own.keys["ana"]) not in text
        told = json.dumps(own.get(own.keys["bo"], "/v1/codespec/stats").json)
        assert '"bo"' in told and '"ana"' not in told, "a key sees its own usage alone"
        assert '"ana"' in json.dumps(own.get(TOKEN, "/v1/codespec/stats").json)


def test_a_client_with_a_key_has_the_daemon_prove_itself(tmp_path: Path) -> None:
    with team(tmp_path) as own:
        nonce, peer = new_nonce(), ("127.0.0.1", own.served.port)
        for name, key in own.keys.items():
            message = own.served.post(PROOF, challenge(nonce, key)).json
            other = own.keys["bo" if name == "ana" else "ana"]
            mine, others = (from_key_hash(hash_of_key(one)) for one in (key, other))
            assert is_proven(message, Keys(key=mine), nonce, peer)
            assert not is_proven(message, Keys(key=others), nonce, peer)
            assert not is_proven(message, Keys(key=mine), new_nonce(), peer)
            assert not is_proven(message, Keys(key=mine), nonce, ("127.0.0.1", own.served.port + 1))
            sent = json.dumps([message, challenge(nonce, key)])
            assert key not in sent and hash_of_key(key) not in sent
        assert own.served.post(PROOF, challenge(nonce, "csk-unknown")).json["by_key"] is None
        assert own.served.post(PROOF, {"nonce": nonce.hex(), "key": "x" * 33}).status == 400


def test_one_key_cannot_fill_the_queue(tmp_path: Path) -> None:
    """The queue is full of ana's requests; bo's is taken, and ana's newest is refused instead."""
    engine = FakeEngine(slots=2)
    engine.gate.clear()
    with team(tmp_path, engine=engine, queue=8) as own:
        asked = [body(f"a{number}", document=f"d{number}") for number in range(10)]
        many = [own.served.open_as(PATH, one, bearer(own.keys["ana"])) for one in asked]
        assert wait_for(lambda: own.served.daemon.num_open == 10)
        assert own.post(own.keys["ana"]).status == 429, "ana's own are too many"
        other = own.served.open_as(PATH, body("b"), bearer(own.keys["bo"]))
        assert wait_for(lambda: "bo" in {one.name for one in own.served.daemon.keyring.accounts if one.open})  # type: ignore[union-attr]
        engine.gate.set()
        assert other.getresponse().status == 200
        statuses = sorted(one.getresponse().status for one in many)
        assert statuses == [200] * 9 + [429]
        for one in (other, *many):
            one.close()


def test_the_file_is_looked_at_by_number_too(tmp_path: Path) -> None:
    """A file that is replaced within one tick of the clock, with the same size."""
    file = tmp_path / "keys"
    first = add_key(file, "ana")
    keyring, times = Keyring(file), file.stat()
    revoke_key(file, "ana")
    second = add_key(file, "ana")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [account.name for account in keyring.refresh()] == ["ana"]
    assert keyring.find(first) is None and keyring.find(second) is not None
