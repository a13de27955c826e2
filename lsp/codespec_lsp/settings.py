"""What a user can set in the editor, read from the client's JSON. Knows names, types and ranges; knows no protocol.

A setting that can't be used keeps its default, and a sentence says so: a typing mistake must not end completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit

RANGES = {"budget_ms": (20, 60_000), "invoked_budget_ms": (20, 60_000), "max_tokens": (1, 4096), "alternatives": (1, 8)}
CHOICES = {"completion": ("auto", "on", "off")}
LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings; JSON spells them in camelCase.

    enabled            whether anything is completed
    languages          by an editor's language id: false switches it off
    budget_ms          the longest time from a change to its answer, which is then the text so far
    invoked_budget_ms  the same where the user asked
    max_tokens         the longest completion, in the target's tokens
    alternatives       how many completions a request of the user's gets
    completion         textDocument/completion: auto (for clients without inlineCompletion), on or off
    more               whether codespec/more tells that a text has grown
    snippets           whether pieces of other open files and what imported files define are sent along, and files that
                       guesses may be copied from
    exclude            globs of files that are neither completed nor sent, as in .gitignore
    url                the daemon
    token_file         a file with the daemon's token ("": none)
    start_daemon       whether a daemon is started where none answers
    model              the model it is then started with, by a name of `codespec models list` ("": as it chooses itself)
    daemon_arguments   more arguments of `codespec serve`, for example ["--target", "PATH"]
    """

    enabled: bool = True
    languages: Mapping[str, bool] = field(default_factory=dict)
    budget_ms: int = 600
    invoked_budget_ms: int = 5000
    max_tokens: int = 64
    alternatives: int = 3
    completion: str = "auto"
    more: bool = True
    snippets: bool = True
    exclude: tuple[str, ...] = ()
    url: str = "http://127.0.0.1:8765"
    token_file: str = ""
    start_daemon: bool = True
    model: str = ""
    daemon_arguments: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        """The daemon's host."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The daemon's port."""
        return urlsplit(self.url).port or 80

    @property
    def daemon_is_here(self) -> bool:
        """Whether the daemon would run on this machine."""
        return self.host in LOCAL

    def completes(self, language_id: str) -> bool:
        """Whether files of a language are completed."""
        return self.enabled and self.languages.get(language_id, True)


def read_settings(values: object, above: Settings) -> tuple[Settings, list[str]]:
    """The settings that the client sent over those of `above`, and a sentence for each that can't be used. Names that
    are not ours are the client's own."""
    if not isinstance(values, Mapping):
        return above, []
    inner = values.get("codespec", values)
    sent = inner if isinstance(inner, Mapping) else values
    changes: dict[str, Any] = {}
    faults: list[str] = []
    for item in fields(Settings):
        name = _camel(item.name)
        if sent.get(name) is None:
            continue
        try:
            changes[item.name] = _read(item.name, sent[name], getattr(above, item.name))
        except ValueError as error:
            faults.append(f"codespec.{name} must be {error}: it stays as it was.")
    return replace(above, **changes), faults


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _read(name: str, value: object, default: Any) -> Any:
    """The value in the setting's type. Raises ValueError that says what it must be."""
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError("a list of texts")
        return tuple(value)
    if isinstance(default, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(item, bool) for item in value.values()):
            raise ValueError("true or false by language")
        return dict(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError("true or false")
        return value
    if isinstance(default, int):
        least, most = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value
    return _read_text(name, value)


def _read_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    if name in CHOICES and value not in CHOICES[name]:
        raise ValueError(f"one of {', '.join(CHOICES[name])}")
    if name == "url":
        return _read_url(value)
    return value


def _read_url(value: str) -> str:
    complaint = "an address such as http://127.0.0.1:8765"
    try:
        parts = urlsplit(value)
        valid = parts.scheme == "http" and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise ValueError(complaint) from error
    if not valid:
        raise ValueError(complaint)
    return value.rstrip("/")
