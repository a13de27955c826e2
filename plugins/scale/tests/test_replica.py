"""A replica without Ray: a real daemon behind an ASGI application."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from codespec_scale.replica import Replica, daemon_environment, kept_headers, labelled
from prometheus_client.parser import text_string_to_metric_families

from codespec.client import proof
from plugins.scale.tests.asgi import SERVER, Client, ask, living, scope
from tests.cli.conftest import LONG, Models, plain_environment  # noqa: F401
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import TOKEN
from tests.server.daemons import wait_for

ENDLESS = {"prefix": "def f(x):\n", "max_tokens": LONG, "shape": "raw", "speculate": False}


def words(models: Models, *more: str) -> list[str]:  # noqa: F811
    return [*models.flags, "--no-prefetch", *more]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True)
class Pair:
    """Two replicas; the second one has a token, and gathers the metrics of both."""

    first: Replica
    second: Replica
    run: Callable[[Coroutine[Any, Any, None]], None]  # in the replicas' event loop


@pytest.fixture(scope="module")
def pair(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:  # noqa: F811
    """Run two replicas, which start and end as an ASGI server has them do."""
    file = tmp_path_factory.mktemp("pair") / "token"
    file.write_text(TOKEN)

    async def both(authorization: str) -> dict[str, bytes]:
        assert authorization == f"Bearer {TOKEN}"
        return dict([await first.metrics(authorization), await second.metrics(authorization)])

    first = Replica(words(models), name=lambda: "r1")
    second = Replica(words(models), str(file), name=lambda: "r2", gather=both)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> tuple[list[str], list[str]]:
            return await stack.enter_async_context(living(first)), await stack.enter_async_context(living(second))

        message = runner.run(start())
        assert message == (["lifespan.startup.complete"], ["lifespan.startup.complete"])
        pids = [first._daemon.pid, second._daemon.pid]
        yield Pair(first, second, runner.run)
        runner.run(stack.aclose())
        assert [one[-1] for one in message] == ["lifespan.shutdown.complete"] * 2 and not any(map(alive, pids))


def test_requests_and_replies_pass_as_they_are(pair: Pair) -> None:
    async def run() -> None:
        replica = pair.first
        health = await ask(replica, "GET", "/health")
        assert health.status == 200 and health.headers["x-codespec-replica"] == "r1"
        assert len([name for name in health.headers if name in ("server", "date", "connection")]) == 0
        body = {"prefix": "def f(x):\n    return", "max_tokens": 8, "shape": "raw"}
        reply = await ask(replica, "POST", "/v1/codespec/complete", body)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert b"event: done\n" in reply.body and len(reply.pieces) > 2
        refused = await ask(replica, "POST", "/v1/codespec/complete", {"colour": 1})
        assert refused.status == 400 and "colour" in refused.json["error"]["message"]
        assert (await ask(replica, "GET", "/no%20where?a=b%26c")).status == 404
        foreign = await ask(replica, "GET", "/health", host="evil.example")
        assert foreign.status == 403, "without a token the daemon answers local names only"
        page = await ask(replica, "GET", "/metrics")
        samples = [line for line in page.body.decode().splitlines() if not line.startswith("#")]
        assert len(samples) > 30 and all('{replica="r1"' in line for line in samples)

    pair.run(run())


def test_one_page_has_the_metrics_of_all_replicas(pair: Pair) -> None:
    async def run() -> None:
        own = {"authorization": f"Bearer {TOKEN}"}
        for replica in (pair.first, pair.second):  # both have the same numbers
            body = {"prefix": "def f(x):\n    return", "max_tokens": 8, "shape": "raw"}
            assert (await ask(replica, "POST", "/v1/codespec/complete", body, **own)).status == 200
        page = (await ask(pair.second, "GET", "/metrics", **own)).body.decode()
        heads = [line for line in page.splitlines() if line.startswith("# TYPE ")]
        states = [line for line in page.splitlines() if line.startswith("codespec:state{")]
        assert len(heads) == len(set(heads)) > 20
        assert states == [f'codespec:state{{replica="{name}",state="ready"}} 1.0' for name in ("r2", "r1")]
        by_family = [{one.labels["replica"] for one in each.samples} for each in text_string_to_metric_families(page)]
        assert all(names in ({"r1", "r2"}, set()) for names in by_family) and {"r1", "r2"} in by_family

    pair.run(run())


def test_with_a_token(pair: Pair) -> None:
    async def run() -> None:
        given = {"authorization": f"Bearer {TOKEN}", "host": "team.example"}
        assert (await ask(pair.second, "GET", "/v1/codespec/stats", host="team.example")).status == 401
        assert (await ask(pair.second, "GET", "/v1/codespec/stats", **given)).status == 200

    pair.run(run())


def test_it_proves_itself_for_the_address_of_the_client(pair: Pair) -> None:
    async def run() -> None:
        replica, nonce = pair.first, proof.new_nonce()
        reply = await ask(replica, "POST", proof.PATH, {"nonce": nonce.hex()})
        assert proof.is_proven(reply.json, proof.own_keys(""), nonce, SERVER)
        assert not proof.is_proven(reply.json, proof.own_keys(""), nonce, ("127.0.0.1", 8001))
        for bad in (b"", b"[]", b'{"nonce": 1}', b'{"nonce": "00"}', b"x" * 100_000):
            assert (await ask(replica, "POST", proof.PATH, bad)).status == 400

    pair.run(run())


def test_a_client_that_leaves_ends_its_work(pair: Pair) -> None:
    async def run() -> None:
        replica, data = pair.first, json.dumps(ENDLESS).encode()
        client = Client(data)
        asking = asyncio.create_task(
            replica(scope("POST", "/v1/codespec/complete", data), client.receive, client.reply.take)
        )
        while not client.reply.body:
            await asyncio.sleep(0.01)
        assert (await ask(replica, "GET", "/health")).json["open"] == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        for _ in range(200):
            if (await ask(replica, "GET", "/health")).json["open"] == 0:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the daemon goes on")

    pair.run(run())


def test_a_replica_ends_with_its_daemon(models: Models) -> None:  # noqa: F811
    async def run() -> None:
        left: list[int] = []
        replica = Replica(words(models), leave=left.append)
        async with living(replica):
            client, data = Client(json.dumps(ENDLESS).encode()), json.dumps(ENDLESS).encode()
            asking = asyncio.create_task(
                replica(scope("POST", "/v1/codespec/complete", data), client.receive, client.reply.take)
            )
            while not client.reply.body:
                await asyncio.sleep(0.01)
            os.kill(replica._daemon.pid, signal.SIGKILL)
            (outcome,) = await asyncio.gather(asking, return_exceptions=True)
            assert isinstance(outcome, Exception) and left == [1] and not client.reply.ended

    asyncio.run(run())


def test_a_daemon_ends_with_its_replica(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """The replica's process is killed, which leaves it no time for anything."""
    pid_file = tmp_path / "pid"

    async def child() -> None:
        replica = Replica(words(models))
        async with living(replica):
            pid_file.write_text(str(replica._daemon.pid))
            os.kill(os.getpid(), signal.SIGKILL)

    process = fork(child)
    os.waitpid(process, 0)
    assert wait_for(lambda: not alive(int(pid_file.read_text())))


def fork(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run a coroutine in a child process; return its id."""
    process = os.fork()
    if process == 0:
        try:
            asyncio.run(main())
        finally:
            os._exit(1)
    return process


def test_a_daemon_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with living(Replica(["--target", str(tmp_path / "none")])) as message:
            assert message[0].startswith("lifespan.startup.failedThe daemon did not start: There is no model folder")

    asyncio.run(run())


def test_labels() -> None:
    page = b'# HELP a it\n# TYPE a counter\na 1.0\nb_bucket{le="+Inf",m="x"} 2\nc{t="q\\"}"} 1e+06\n'
    assert labelled(page, "r").decode().splitlines()[2:] == [
        'a{replica="r"} 1.0',
        'b_bucket{replica="r",le="+Inf",m="x"} 2',
        'c{replica="r",t="q\\"}"} 1e+06',
    ]


def test_headers_of_one_connection_stay_there() -> None:
    given = [(b"Connection", b"close, X-Own"), (b"X-Own", b"1"), (b"X-Session-Id", b"s"), (b"Expect", b"100-continue")]
    assert kept_headers(given, {b"connection", b"expect"}) == [("x-session-id", "s")]


def test_the_daemons_environment() -> None:
    given = {"RAY_JOB": "1", "OMP_NUM_THREADS": "1", "CODESPEC_SERVE_PORT": "1", "CODESPEC_MODEL": "starter", "A": "b"}
    assert daemon_environment(given) == {"CODESPEC_MODEL": "starter", "A": "b"}
