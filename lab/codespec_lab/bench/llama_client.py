"""A client of llama.cpp's server: readiness, facts about the model and build, and streamed completions of token ids."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from codespec.bounded_json import parse_json

ANSWER_SECONDS = 600.0
HEALTH_SECONDS = 5.0  # timeout of one request to /health
MOST_LINE = 1 << 24  # bytes of one event, or of another answer
FAILURES = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError)
CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class LlamaServerError(Exception):
    """llama-server is missing, doesn't start, or breaks off; the message is one sentence without a full stop."""


class BrokenOffError(LlamaServerError):
    """The connection fails, or an answer can't be read: the process may have ended."""


@dataclass(frozen=True, slots=True)
class Timings:
    """The server's statistics of one answer: milliseconds, prompt tokens that were computed and that came from its
    cache, and drafted tokens.
    """

    prompt_ms: float
    prompt_tokens: int
    cached_tokens: int
    text_ms: float
    drafted: int
    accepted: int


@dataclass(slots=True)
class Completion:
    """One answer: its ids, the arrival time of each, the end time (`perf_counter` seconds), its text without the stop
    text, and the server's timings, or None if the client ended the answer.
    """

    ids: list[int] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    ended: float = 0.0
    text: str = ""
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The server's model (file name), its parameters (0 if not reported), and the build."""

    model: str
    parameters: int
    build: str


class LlamaClient:
    """A client of the server at an http or https address. Raises LlamaServerError for any other address."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            self._connect, self._host, self._port = CONNECTIONS[parts.scheme], str(parts.hostname or ""), parts.port
        except (KeyError, ValueError) as error:
            raise LlamaServerError("it is not an http address") from error
        self._path = parts.path.rstrip("/")

    def is_healthy(self) -> bool:
        """Return whether the server has loaded its model."""
        try:
            with self._answer("GET", "/health", seconds=HEALTH_SECONDS) as response:
                return response.status == 200
        except (OSError, http.client.HTTPException):
            return False

    def facts(self) -> Facts:
        """Return the server's model and build. Raise LlamaServerError if no llama-server answers."""
        try:
            props, models = self._get("/props"), self._get("/v1/models")
            path = str(props.get("model_path") or props.get("model_alias") or "unnamed")
            parameters = int((models["data"][0].get("meta") or {}).get("n_params", 0))
            return Facts(PurePath(path).name, parameters, str(props.get("build_info", "unknown build")))
        except FAILURES as error:
            raise LlamaServerError(f"no llama-server answers: {_named(error)}") from error

    def complete(
        self,
        ids: Sequence[int],
        tokens: int,
        *,
        ends: Collection[int] = (),
        stops: Sequence[str] = (),
        temperature: float = 0.0,
        seed: int = 0,
        cached: bool = False,
    ) -> Completion:
        """Decode a prompt of ids up to and including an id of `ends`, up to a text of `stops`, or for `tokens` tokens.
        Without `cached`, recompute the whole prompt. Raise LlamaServerError if the server refuses, BrokenOffError if it
        fails.
        """
        body = {
            "prompt": list(ids),
            "n_predict": tokens,
            "temperature": temperature,
            "samplers": ["temperature"],
            "seed": seed,
            "stop": list(stops),
            "cache_prompt": cached,
            "return_tokens": True,
            "stream": True,
        }
        found = Completion()
        try:
            with self._answer("POST", "/completion", json.dumps(body)) as response:
                _demand_success(response)
                _read(response, ends, found)
        except FAILURES as error:
            raise BrokenOffError(f"llama-server breaks off ({_named(error)})") from error
        return found

    def _get(self, path: str) -> Any:
        with self._answer("GET", path) as response:
            _demand_success(response)
            return parse_json(response.read(MOST_LINE))

    @contextmanager
    def _answer(
        self, method: str, path: str, body: str | None = None, *, seconds: float = ANSWER_SECONDS
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the response to a request, on a new connection."""
        connection = self._connect(self._host, self._port, timeout=seconds)
        try:
            connection.request(method, self._path + path, body, {"Content-Type": "application/json"} if body else {})
            yield connection.getresponse()
        finally:
            connection.close()


def _demand_success(response: http.client.HTTPResponse) -> None:
    """Raise LlamaServerError if the server refuses."""
    if response.status != 200:
        said = _refusal(response.read(MOST_LINE)) or f"HTTP {response.status}"
        raise LlamaServerError(f"llama-server refuses: {said}")


def _read(response: http.client.HTTPResponse, ends: Collection[int], found: Completion) -> None:
    """Add all events of an answer to `found`. Raise ValueError if the answer ends early."""
    for event in _events(response):
        now = time.perf_counter()
        for token in event.get("tokens", ()):
            found.ids.append(int(token))
            found.arrived.append(now)
            if token in ends:  # the server may not count this id as an end
                break
        found.ended = now
        found.text += event["content"]
        if event.get("truncated"):
            raise LlamaServerError("the prompt does not fit into llama-server: start it with a larger context")
        if event.get("stop"):
            found.timings = _timings(event["timings"])
        if event.get("stop") or (found.ids and found.ids[-1] in ends):
            return
    raise ValueError("no last event")


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """Yield the data of all server-sent events. Raise LlamaServerError for an error event."""
    while line := response.readline(MOST_LINE):
        name, _, value = line.strip().partition(b": ")
        if name == b"error":
            raise LlamaServerError(f"llama-server fails: {_refusal(value)}")
        if name == b"data" and value != b"[DONE]":
            event = parse_json(value)
            if "error" in event:
                raise LlamaServerError(f"llama-server fails: {_refusal(value)}")
            yield event


def _timings(values: Mapping[str, Any]) -> Timings:
    return Timings(
        float(values["prompt_ms"]),
        int(values["prompt_n"]),
        int(values.get("cache_n", 0)),
        float(values["predicted_ms"]),
        int(values.get("draft_n", 0)),
        int(values.get("draft_n_accepted", 0)),
    )


def _refusal(content: bytes) -> str:
    """Return the message of a JSON error, or the start of any other text."""
    try:
        found = parse_json(content)
        return str(found.get("error", found)["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return content[:200].decode(errors="replace").strip()


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
