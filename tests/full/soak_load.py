"""The load of the soak test: requests of many kinds at a daemon, and which text each may return.

A request's text is the one that the target writes alone, in an engine of this process without drafts. While the daemon
is being killed or started, a request may fail.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from codespec.api.types import CompletionRequest
from codespec.engine.engine import Engine
from tests.pairs import prompts

TOGETHER = 16  # requests at once
PLACES, SEEDS, LENGTHS = 8, 3, (4, 8, 12, 16)
COMPLETE = "/v1/codespec/complete"
PAGES = ("/health", "/ready", "/v1/models", "/metrics", "/v1/codespec/stats", "/api/tags", "/props", "/openapi.json")
LOST = (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError, TimeoutError)
PATIENCE = 300.0  # seconds for any reply


@dataclass(frozen=True, slots=True)
class Case:
    """One completion in one dialect: where to send what, how to read the reply, and what it means for the engine."""

    path: str
    body: Mapping[str, Any]
    field: str
    request: CompletionRequest


def random_case(dice: random.Random) -> Case:
    """Return a completion of a random place, greedy or of a seed, in a random dialect, whole or as a stream."""
    place, tokens = dice.randrange(PLACES), dice.choice(LENGTHS)
    prefix, suffix = prompts(PLACES)[place][:160], "\n    return self\n" if place % 2 else ""
    sampling = {"temperature": 0.8, "seed": dice.randrange(SEEDS)} if dice.random() < 0.5 else {"temperature": 0.0}
    sent, stream = {"prompt": prefix, "suffix": suffix, **sampling}, {"stream": dice.random() < 0.5}
    raw = CompletionRequest(prefix=prefix, suffix=suffix, max_tokens=tokens, **sampling)  # type: ignore[arg-type]
    shaped = replace(raw, shape="auto", heal=True)
    seeded = {("random_seed" if name == "seed" else name): value for name, value in sent.items()}
    options = {"num_predict": tokens, **sampling}
    infill = {"input_prefix": prefix, "input_suffix": suffix, "n_predict": tokens, **sampling, **stream}
    segments = {"segments": {"prefix": prefix, "suffix": suffix}, **sampling}
    shape = dice.choice(("raw", "auto"))
    own = {"prefix": prefix, "suffix": suffix, "max_tokens": tokens, "shape": shape, **sampling}
    return dice.choice(
        (
            Case(COMPLETE, own, "text", raw if shape == "raw" else shaped),
            Case("/v1/completions", {**sent, "max_tokens": tokens, **stream}, "text", raw),
            Case("/v1/fim/completions", {**seeded, "max_tokens": tokens, **stream}, "content", shaped),
            Case("/v1/completions", segments, "text", replace(shaped, max_tokens=64)),
            Case("/api/generate", {"prompt": prefix, "suffix": suffix, "options": options, **stream}, "response", raw),
            Case("/completion", {**sent, "n_predict": tokens, **stream}, "content", raw),
            Case("/infill", infill, "content", shaped),
        )
    )


def read_text(body: bytes, field: str) -> str:
    """Return the text of a reply, whole or streamed, in any dialect: all values of `field`, in order."""
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n")]
    return "".join(text for line in lines if line.startswith("{") for text in _values(json.loads(line), field))


def _values(value: Any, field: str) -> Iterator[str]:
    if isinstance(value, dict):
        found = value.get(field)
        if isinstance(found, str):
            yield found
        for name in ("choices", "message", "delta"):
            yield from _values(value.get(name), field)
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, field)


class Oracle:
    """What the target writes alone, computed once for each request."""

    def __init__(self, target: Path) -> None:
        self._engine = Engine.load(target=str(target), drafter=None, warmup=0, threads=1, speculate=False)
        self._known: dict[CompletionRequest, str] = {}

    def text(self, request: CompletionRequest) -> str:
        """Return the whole text."""
        if request not in self._known:
            self._known[request] = self._engine.complete([request])[0].text
        return self._known[request]


@dataclass(slots=True)
class Now:
    """`downs` counts the beginnings and ends of the times without a daemon, so that it is odd during one."""

    downs: int = 0


class Load:
    """Sends requests to the daemon at `port`. `wrong` lists what must not happen, `counts` what happened."""

    def __init__(self, port: int, token: str, oracle: Oracle, now: Now, seed: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.port = port
        self.now = now
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._own = {"Authorization": f"Bearer {token}"}
        self._oracle = oracle
        self._dice = random.Random(seed)
        self._session: aiohttp.ClientSession
        self._kinds: dict[Callable[[], Awaitable[None]], int] = {
            self._whole: 44,
            self._cancelled: 22,
            self._slow: 6,
            self._newer: 5,
            self._overdue: 4,
            self._predicted: 4,
            self._half_sent: 5,
            self._wrong_key: 4,
            self._invalid: 3,
            self._page: 2,
            self._files: 1,
        }

    async def run(self, count: int, at: Mapping[int, Callable[[], Awaitable[None]]]) -> None:
        """Send `count` requests, and begin the functions of `at` at their numbers."""
        numbers, tasks = iter(range(count)), []
        timeout, connector = aiohttp.ClientTimeout(total=PATIENCE), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.base, timeout=timeout, connector=connector) as self._session:

            async def work() -> None:
                for number in numbers:
                    if number in at:
                        tasks.append(asyncio.ensure_future(at[number]()))
                    await self._one()

            await asyncio.gather(*(work() for _ in range(TOGETHER)))
            await asyncio.gather(*tasks)

    async def _one(self) -> None:
        (kind,) = self._dice.choices(list(self._kinds), list(self._kinds.values()))
        downs = self.now.downs
        self.counts["requests"] += 1
        self.counts[kind.__name__.strip("_")] += 1
        try:
            await kind()
        except (*LOST, Down) as error:  # of two requests at once, the first error
            if not (downs % 2 or downs != self.now.downs):
                self.wrong.append(f"{kind.__name__}: {type(error).__name__} {error}")
            self.counts["lost while the daemon was down"] += 1
            await asyncio.sleep(0.05)

    async def _post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.post(path, data=data, headers=self._own if headers is None else headers) as reply:
            return reply.status, await reply.read()

    def _check(self, body: bytes, case: Case, *, part: bool) -> bool:
        """Note a text that the target does not write; with `part`, also the beginning of a text is right.

        Return whether it is whole.
        """
        self.counts["texts"] += 1
        got = read_text(body, case.field)
        right = self._oracle.text(case.request)
        if not (right.startswith(got) if part else right == got):
            self.counts["wrong texts"] += 1
            self.wrong.append(f"{case}: {got!r} instead of {right!r}; {body[-600:]!r}")
        return got == right

    def _finished(self, status: int, body: bytes, expected: int = 200) -> bool:
        """Return whether a reply is whole and has the expected status. Raises Down if the daemon goes or comes."""
        if status == 503 or b"is stopping" in body:
            raise Down(body[:200])
        if status != expected:
            self.wrong.append(f"status {status} instead of {expected}: {body[:300]!r}")
        return status == expected == 200

    async def _whole(self) -> None:
        await self._complete(random_case(self._dice))

    async def _complete(self, case: Case, *, part: bool = False) -> bool:
        """Send a request and check its text. Return whether it is whole."""
        status, body = await self._post(case.path, case.body)
        return self._finished(status, body) and self._check(body, case, part=part)

    async def _cancelled(self) -> None:
        """Leave at a random moment, before or after the first byte."""
        case = random_case(self._dice)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._dice.uniform(0.0, 0.15)):
                await self._complete(case)
            self.counts["finished before the client left"] += 1

    async def _slow(self) -> None:
        """Read a stream in pieces of a few bytes, with pauses."""
        case = random_case(self._dice)
        while not (case.path == COMPLETE or case.body.get("stream")):
            case = random_case(self._dice)
        pieces = list[bytes]()
        async with self._session.post(case.path, json=case.body, headers=self._own) as reply:
            while piece := await reply.content.read(self._dice.randrange(1, 200)):
                pieces.append(piece)
                await asyncio.sleep(self._dice.uniform(0.0, 0.03))
        if self._finished(reply.status, b"".join(pieces)):
            self._check(b"".join(pieces), case, part=False)

    async def _newer(self) -> None:
        """Send two versions of one document: the one that arrives first may end early, with a beginning of its text."""
        newer = _as_raw(random_case(self._dice).request)
        older = replace(newer, prefix=newer.prefix[:-1])
        document = {"document": f"file:///{self._dice.randrange(10**9)}.py"}
        cases = [Case(COMPLETE, {**_raw(request), **document}, "text", request) for request in (older, newer)]
        first = asyncio.ensure_future(self._complete(cases[0], part=True))
        await asyncio.sleep(self._dice.uniform(0.0, 0.05))
        whole = await asyncio.gather(first, self._complete(cases[1], part=True))
        if not any(whole):
            self.wrong.append(f"neither version is whole: {cases}")

    async def _overdue(self) -> None:
        """Set a deadline: the text may be the beginning of the right one."""
        request = _as_raw(random_case(self._dice).request)
        body = {**_raw(request), "deadline_ms": self._dice.choice([1, 10, 50, 200])}
        await self._complete(Case(COMPLETE, body, "text", request), part=True)

    async def _predicted(self) -> None:
        """Predict a text, right or wrong, which is used as a draft."""
        request = _as_raw(random_case(self._dice).request)
        right = self._oracle.text(request)
        body = {**_raw(request), "draft": self._dice.choice([right, right[:-3] + "xyz", "return 0\n", "\N{SNOWMAN}"])}
        await self._complete(Case(COMPLETE, body, "text", request))

    async def _half_sent(self) -> None:
        """Promise a body and send half of it; then leave, or now and then wait for the error."""
        case, waits = random_case(self._dice), self._dice.random() < 0.02
        data = json.dumps(case.body).encode()
        head = f"POST {case.path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {self._own['Authorization']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head.encode() + data[: self._dice.randrange(len(data))])
            await writer.drain()
            if waits:
                line = await asyncio.wait_for(reader.readline(), PATIENCE)
                self._finished(int(line.split()[1]) if line else 503, line, expected=408)
            else:
                await asyncio.sleep(self._dice.uniform(0.0, 0.3))
        finally:
            writer.close()

    async def _wrong_key(self) -> None:
        case = random_case(self._dice)
        key = self._dice.choice(["", "Bearer wrong", "Bearer ", "Basic x", f"{self._own['Authorization']}x"])
        status, body = await self._post(case.path, case.body, {"Authorization": key} if key else {})
        self._finished(status, body, expected=401)

    async def _invalid(self) -> None:
        case = random_case(self._dice)
        bodies = [b"{", b"", b"[1]", b'{"prefix": 1}', json.dumps({**case.body, "temperature": "hot"}).encode()]
        status, body = await self._post(COMPLETE, self._dice.choice(bodies))
        self._finished(status, body, expected=400)

    async def _page(self) -> None:
        async with self._session.get(self._dice.choice(PAGES), headers=self._own) as reply:
            self._finished(reply.status, await reply.read())

    async def _files(self) -> None:
        files = [{"path": f"{name}.py", "text": text} for name, text in enumerate(prompts(PLACES))]
        document = f"file:///{self._dice.randrange(50)}.py"
        status, body = await self._post("/v1/codespec/files", {"document": document, "files": files})
        self._finished(status, body)


class Down(Exception):
    """Raised for a reply of a daemon that is starting or stopping."""


def _as_raw(request: CompletionRequest) -> CompletionRequest:
    return replace(request, shape="raw", heal=False)


def _raw(request: CompletionRequest) -> dict[str, Any]:
    names = ("prefix", "suffix", "max_tokens", "temperature", "seed")
    return {**{name: getattr(request, name) for name in names}, "shape": "raw"}
