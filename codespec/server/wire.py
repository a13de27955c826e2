"""Read request bodies field by field with type checks; write JSON, errors and server-sent events."""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin

from aiohttp import web

from codespec.api.body import Field, Texts, body_fields
from codespec.api.limits import MAX_BODY, MAX_COUNT, MAX_SEPARATORS, MAX_STOPS, MAX_TEXT, MAX_WORD
from codespec.errors import CodespecError, RequestError, ServeError
from codespec.files import TooLarge, parse_json

READ_SECONDS = 20.0  # to receive a whole body
MAX_PROMPTS = 64  # in one request
WRITE_SECONDS = 20.0  # for a client to accept one piece
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")  # JSON allows these line separators, but some clients split lines at them
B = TypeVar("B")
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 501: "not_supported_error"}


class Refused(RequestError):
    """A request that is refused with an HTTP `status` because of its header, path, method or size."""

    def __init__(self, message: str, field: str, status: int) -> None:
        super().__init__(message, field)
        self.status = status


class Fields:
    """A JSON object whose fields are read with type checks. A null field counts as absent.

    Methods raise RequestError, with the field's name, for an invalid value. Leaving a `with` block frees the values.
    """

    def __init__(self, values: Mapping[str, Any], above: str = "") -> None:
        self._values = values
        self._above = above

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, *_: object) -> None:
        # A handler does not need the values while it waits or streams.
        del self._values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def label(self, name: str) -> str:
        """Return a field's full name, such as `options.num_ctx`."""
        return f"{self._above}{name}"

    def only(self, names: Iterable[str]) -> None:
        """Raise RequestError for the first field that is not among the names."""
        known = tuple(names)
        for name in self._values:
            if name not in known:
                shown = clip(self.label(name)) or '""'
                raise RequestError(f"{shown} is unknown: the fields are {', '.join(known)}.", shown)

    def read(self, schema: type[B]) -> B:
        """Return the fields that `schema` declares. Raise RequestError for the first unknown or invalid field."""
        declared = body_fields(cast(type, schema))
        self.only(declared)
        for name, field in declared.items():
            if field.required:
                self._get(name, None)
        return cast(B, {name: self._read(name, field) for name, field in declared.items() if name in self})

    def _read(self, name: str, declared: Field) -> Any:
        kind, facts = declared.kind, declared.facts
        least, most = cast(Any, facts.least), cast(Any, facts.most)
        if kind is str:
            return self.choice(name, facts.choices) if facts.choices else self.text(name, most=most)
        if kind is int:
            return self.whole(name, 0, least, most)
        if kind is float:
            return self.number(name, 0, least, most)
        if kind is bool:
            return self.flag(name)
        if kind == Texts:
            return self.texts(name, most)
        if kind == list[int]:
            return self.wholes(name, most)
        if get_origin(kind) is list:
            return [part.read(get_args(kind)[0]) for part in self.parts(name, most)]
        part = self.part(name)
        return None if part is None else part.read(kind)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self._get(name, None)
        if value not in choices:
            self._refuse(name, f"one of {', '.join(choices)}")
        return str(value)

    def text(self, name: str, default: str | None = None, most: int = MAX_TEXT) -> str:
        """Return a text without lone surrogates; the field is required if `default` is None."""
        value = self._get(name, default)
        if not isinstance(value, str):
            self._refuse(name, "text")
        if len(value) > most:
            self._refuse(name, f"at most {most} characters long")
        if not is_utf8(value):
            self._refuse(name, "valid text, without lone surrogates")
        return value

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """Return an integer within bounds. All numbers have bounds, because some determine memory use and run time."""
        value = self._get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            self._refuse(name, f"a whole number from {least} to {most}")
        return value

    def wholes(self, name: str, most: int) -> list[int]:
        """Return a list of 1 to `most` integers from 0 to MAX_COUNT."""
        value = self._get(name, None)
        if not _is_ids(value) or len(value) > most or not all(0 <= item <= MAX_COUNT for item in value):
            self._refuse(name, f"a list of 1 to {most} whole numbers from 0 to {MAX_COUNT}")
        return list(value)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self._get(name, default)
        if type(value) not in (int, float) or not least <= value <= most:
            self._refuse(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._get(name, default)
        if type(value) is not bool:
            self._refuse(name, "true or false")
        return value

    def texts(self, name: str, most: int = MAX_STOPS) -> tuple[str, ...]:
        """Return the non-empty texts of a list, or a single text as a tuple."""
        value = self._values.get(name)
        items = [] if value is None else [value] if isinstance(value, str) else value
        if (
            not isinstance(items, list)
            or len(items) > most
            or not all(isinstance(i, str) and len(i) <= MAX_WORD and is_utf8(i) for i in items)
        ):
            self._refuse(name, f"a text or a list of at most {most} texts, each at most {MAX_WORD} characters long")
        return tuple(item for item in items if item)

    def prompts(self, name: str) -> list[str | tuple[int, ...]]:
        """Return a prompt or a list of prompts, each as text or as token ids."""
        value = self._get(name, None)
        items = value if isinstance(value, list) and not _is_ids(value) else [value]
        valid = all(_is_ids(item) or (isinstance(item, str) and is_utf8(item)) for item in items)
        if not items or len(items) > MAX_PROMPTS or not valid:
            self._refuse(name, f"a text, a list of token ids, or a list of at most {MAX_PROMPTS} of these")
        if any(len(item) > MAX_TEXT for item in items):
            self._refuse(name, f"at most {MAX_TEXT} characters long")
        return [item if isinstance(item, str) else tuple(item) for item in items]

    def ids(self, name: str, limit: int) -> tuple[int, ...]:
        """Return a list of token ids, all below `limit`."""
        value = self._get(name, [])
        if value != [] and not (_is_ids(value) and min(value) >= 0 and max(value) < limit):
            self._refuse(name, f"a list of token ids from 0 to {limit - 1}")
        return tuple(value)

    def text_or_parts(self, name: str, joint: str = "\n", most: int = MAX_BODY) -> str:
        """Return a field that is either a text or a list of parts, whose texts are joined with `joint`."""
        if not isinstance(self._values.get(name), list):
            return self.text(name, most=min(most, MAX_TEXT))
        parts = self.parts(name)
        for part in parts:
            if part.text("type", "text") != "text":
                self._refuse(name, "text, whole or in parts of type text")
        whole = joint.join(part.text("text") for part in parts)
        if len(whole) > most:
            self._refuse(name, f"at most {most} characters long")
        return whole

    def part(self, name: str) -> Fields | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            self._refuse(name, "an object")
        return None if value is None else Fields(value, f"{self.label(name)}.")

    def parts(self, name: str, most: int = 256) -> list[Fields]:
        value = self._get(name, [])
        if not isinstance(value, list) or len(value) > most or not all(isinstance(item, dict) for item in value):
            self._refuse(name, f"a list of at most {most} objects")
        return [Fields(item, f"{self.label(name)}[{place}].") for place, item in enumerate(value)]

    def differs(self, name: str, values: Iterable[Any]) -> bool:
        """Return whether a field is present with a value that is not among `values`."""
        return name in self and self._values[name] not in tuple(values)

    def refuse_unless(self, name: str, harmless: Iterable[Any], why: str) -> None:
        """Raise RequestError if a field has a value other than the `harmless` ones, which have no effect."""
        if self.differs(name, harmless):
            raise RequestError(f"{self.label(name)} is not supported ({why}): leave it out.", self.label(name))

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None and default is None:
            raise RequestError(f"{self.label(name)} is missing: send it.", self.label(name))
        return default if value is None else value

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise RequestError(f"{self.label(name)} must be {what}.", self.label(name))


def route_of(request: web.Request) -> str:
    """Return the pattern of a request's route, which contains no client data, or "-" for an unknown path."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "-"


async def read_fields(request: web.Request) -> Fields:
    """Read the body as a JSON object, regardless of its content type. Raise RequestError."""
    coding = request.headers.get("Content-Encoding", "")
    if coding.strip().lower() not in ("", "identity"):
        sentence = "Content-Encoding is refused (a small body could become a large one): send the body uncompressed."
        raise Refused(sentence, "Content-Encoding", 415)
    return parse_fields(await _read_body(request))


async def _read_body(request: web.Request) -> bytearray:
    """Read the whole body without aiohttp's own `read`, which would retain a copy of the body."""
    body = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            while piece := await request.content.readany():
                body += piece
                if len(body) > MAX_BODY:
                    raise Refused(f"The body is longer than {MAX_BODY >> 20} MiB: send less text.", "body", 413)
    except TimeoutError as error:
        raise Refused(f"The body did not arrive within {READ_SECONDS:g} s: send it faster.", "body", 408) from error
    except web.RequestPayloadError as error:
        raise RequestError(
            "The body does not match its headers: correct Content-Length or Transfer-Encoding.", "body"
        ) from error
    return body


def parse_fields(body: bytes | bytearray) -> Fields:
    """Parse standard JSON, without NaN and with limits on nesting depth and number of values."""
    if body.startswith(BOM_UTF8):  # PowerShell and Notepad write it
        body = body[len(BOM_UTF8) :]
    try:
        values = parse_json(body, MAX_SEPARATORS, finite=True)
    except TooLarge as error:
        sentence = f"The body can't be read ({error}): send a smaller or less deeply nested one."
        raise RequestError(sentence, "body") from error
    except ValueError as error:
        raise RequestError("The body must be valid JSON in UTF-8.", "body") from error
    if not isinstance(values, dict):
        raise RequestError("The body must be a JSON object.", "body")
    return Fields(values)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def is_utf8(text: str) -> bool:
    """Return whether a text has no lone surrogate, which UTF-8 can't encode."""
    try:
        text.encode()  # a Python loop over a long text would block the event loop
    except UnicodeEncodeError:
        return False
    return True


def clip(text: str, most: int = 80) -> str:
    """Truncate and escape a client's text for an error message."""
    return text[:most].encode("ascii", "backslashreplace").decode()


def dump(value: Any) -> bytes:
    """Return compact JSON on one line, because llama.vim reads lines and drops replies with a space after a colon."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", text).encode("utf-8")


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=dump(value), status=status, headers=headers, content_type="application/json")


def _status_of(error: CodespecError) -> int:
    return error.status if isinstance(error, (ServeError, Refused)) else 400


def error_body(error: CodespecError) -> dict[str, Any]:
    """Return an error in a JSON format that the clients of all dialects can read."""
    status, field = _status_of(error), error.field if isinstance(error, RequestError) else ""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"code": status, "message": str(error), "type": kind, "param": field or None, "field": field}
    state = {"state": error.state} if isinstance(error, ServeError) and error.state else {}
    return {"error": body | state}


def error_reply(error: CodespecError, body: Any = None) -> web.Response:
    """Return the HTTP response for an error, with `error_body` unless a dialect passes its own `body`."""
    wait = error.retry_after if isinstance(error, ServeError) else 0
    headers = {"Retry-After": str(wait)} if wait else None
    return reply(error_body(error) if body is None else body, _status_of(error), headers)


class StreamReply:
    """A streamed reply, which closes the connection if the client does not read."""

    def __init__(self, request: web.Request, content_type: str) -> None:
        self._request = request
        headers = {"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self.response = web.StreamResponse(headers=headers)

    async def send(self, data: bytes) -> None:
        """Write one piece of the body. Raise ConnectionResetError if the client does not read the data in time."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self.response.write(data)
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read the reply") from error

    async def end(self) -> web.StreamResponse:
        await self.response.write_eof()
        return self.response


def sse(value: Any, name: str = "") -> bytes:
    """Return a server-sent event with JSON data."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump(value) + b"\n\n"


def event_stream(request: web.Request) -> StreamReply:
    return StreamReply(request, "text/event-stream; charset=utf-8")
