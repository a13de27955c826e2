"""Fuzz the real daemon: bodies made from the fields its handlers read, damaged bodies, broken HTTP.

The fields are recorded by running the handlers once in this process.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections import defaultdict
from typing import Any, NamedTuple
from unittest import mock

from codespec.server.wire import Fields
from tests.full.fuzzing import VALUES, Finding, Memory, damaged, scratched, turns
from tests.server.daemons import serving, wait_for
from tests.server.test_bounds import BODIES, SPOKEN, bodies
from tests.server.test_fuzz import PATHS, check, random_headers, talking_engine
from tests.server.test_process import Process

KINDS = ("text", "whole", "number", "flag", "texts", "prompts", "ids", "text_or_parts", "part", "parts")
SMALL = {"max_tokens": 4, "n_predict": 4, "max_completion_tokens": 4, "options": {"num_predict": 4}}
WORDS = ["", "x", "def f(x):\n    return ", "\t\n", "é\U0001f600", "<|im_end|>", "\ufdd0", "a" * 3000, "x = 1\r\n"]
SECONDS = 600  # without a byte; a text of half the context took 52 on a busy machine
SETTLED = 2000  # requests until every batch size has been computed


class Field(NamedTuple):
    """A field of a body: its full name, its kind, and its stated bounds."""

    label: str
    kind: str
    bounds: tuple[Any, ...]


def find_fields() -> dict[str, list[Field]]:
    """Return the fields that each path's handler reads."""
    seen: dict[str, set[Field]] = defaultdict(set)
    asked = {"path": ""}

    def noting(kind: str) -> Any:
        read = getattr(Fields, kind)

        def note(self: Fields, name: str, *more: Any, **named: Any) -> Any:
            bounds = tuple(value for value in (*more, *named.values()) if isinstance(value, int | float))
            seen[asked["path"]].add(Field(self.label(name), kind, bounds))
            return read(self, name, *more, **named)

        return mock.patch.object(Fields, kind, note)

    patches = [noting(kind) for kind in KINDS]
    with serving(talking_engine()) as served:
        for patch in patches:
            patch.start()
        for path, body in bodies():
            asked["path"] = path
            served.post(path, body)
        mock.patch.stopall()
    return {path: sorted(fields) for path, fields in seen.items()}


def value_of(field: Field, chance: random.Random) -> Any:
    """Return a value that is mostly valid, or at or beyond a bound."""
    if chance.random() < 0.25:
        return chance.choice(VALUES)
    if field.kind in ("whole", "number"):
        near = [bound + step for bound in field.bounds for step in (-1, 0, 1)]
        few = "tokens" in field.label or "predict" in field.label or field.label == "n"
        return chance.choice([0, 1, 2, 3] if few and chance.random() < 0.9 else [*near, 0, 1, 0.5, 7])
    texts = [chance.choice(WORDS) for _ in range(chance.choice([0, 1, 3]))]
    return {
        "text": chance.choice(WORDS),
        "flag": chance.random() < 0.5,
        "texts": texts,
        "prompts": chance.choice([texts, chance.choice(WORDS), [1, 2, 3], [[1], [2, 3]]]),
        "ids": [chance.randrange(300) for _ in range(3)],
        "text_or_parts": chance.choice([chance.choice(WORDS), [{"type": "text", "text": chance.choice(WORDS)}]]),
        "part": {},
        "parts": [{"role": "user", "content": chance.choice(WORDS), "path": "a.py", "text": chance.choice(WORDS)}],
    }[field.kind]


def placed(body: Any, label: str, value: Any) -> Any:
    """Return the body with a field set, possibly a nested one: `options.seed`, `messages[0].role`."""
    name, _, rest = label.partition(".")
    name, _, place = name.partition("[")
    if not isinstance(body, dict):
        return body
    if place:
        listed = body.get(name)
        if isinstance(listed, list) and listed:
            body = {**body, name: [placed(listed[0], rest, value), *listed[1:]]}
        return body
    return {**body, name: placed(body.get(name, {}), rest, value) if rest else value}


class Fuzzer:
    """Sends requests to one daemon."""

    def __init__(self, served: Process, chance: random.Random) -> None:
        self.served, self.chance, self.fields = served, chance, find_fields()
        self.statuses: dict[int, int] = defaultdict(int)

    def run(self) -> None:
        """Fuzz until the time is over. Raise Finding."""
        memory = Memory(self.served.process.pid, SETTLED)
        for turn in turns():
            ends = self.chance.random() < 0.1
            given = self.broken() if ends else self.request()
            try:
                status, body = self.exchange(given, ends)
                self.judge(status, body)
            except (AssertionError, ValueError, KeyError, TypeError, OSError, http.client.HTTPException) as error:
                raise Finding(f"{type(error).__name__}: {error}", given) from error
            if turn % 200 == 0:
                if self.served.ask("GET", "/health")[0] != 200:
                    raise Finding("/health is not ok", given)
                memory.look(turn, given)
        if not wait_for(lambda: self.served.num_open() == 0):
            raise Finding("a request stays open", "see the seed")

    def request(self) -> bytes:
        """Return well-formed HTTP with an arbitrary body."""
        chance = self.chance
        path = chance.choice(sorted(self.fields) if chance.random() < 0.9 else PATHS)
        body: Any = {**SMALL, **chance.choice(BODIES.get(path, [{"prompt": "x", "messages": SPOKEN}]))}
        for field in chance.choices(self.fields.get(path, []), k=chance.randrange(5)) if path in self.fields else ():
            body = placed(body, field.label, value_of(field, chance))
        if chance.random() < 0.3:
            body = damaged(body, chance, chance.choice([1, 1, 4]))
        data = json.dumps(body, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        data = scratched(data, chance) if chance.random() < 0.15 else data
        method = chance.choice(["POST"] * 20 + ["GET", "PUT", "OPTIONS", "HEAD", "DELETE"])
        headers = {"Host": "localhost", "Content-Length": str(len(data)), **random_headers(chance)}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {path} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode("latin-1") + data

    def broken(self) -> bytes:
        """Return broken or truncated HTTP."""
        data = self.request()
        if self.chance.random() < 0.3:
            return data[: self.chance.randrange(len(data))]
        end = data.index(b"\r\n\r\n")
        return scratched(data[:end], self.chance) + data[end:]

    def exchange(self, given: bytes, ends: bool) -> tuple[int, bytes]:
        """Return status and body of the reply; status 0 if the daemon closed without one, as it may for broken HTTP.

        If `ends`, the write side is closed after the request, even if the headers promise more.
        """
        with socket.create_connection((self.served.host, self.served.port), timeout=SECONDS) as connection:
            connection.sendall(given)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            reply = http.client.HTTPResponse(connection, method=given.partition(b" ")[0].decode("latin-1"))
            try:
                reply.begin()
                return reply.status, reply.read()
            except (http.client.BadStatusLine, http.client.IncompleteRead, ConnectionResetError):
                return 0, b""
            finally:
                reply.close()

    def judge(self, status: int, body: bytes) -> None:
        """Assert that there is no 5xx, no internal error, and one sentence for a refusal."""
        self.statuses[status] += 1
        for words in (b"please report", b"Traceback", b"engine failed", b"engine has stopped"):
            assert words not in body, body[:500]
        assert status < 500, (status, body[:500])
        if 400 <= status < 500:
            check(status, body)
