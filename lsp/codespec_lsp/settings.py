"""Read the user's editor settings from the client's JSON and check their types and ranges.

An invalid setting is reported and keeps its previous value, so that a typo doesn't disable completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit

from codespec.client.proven_connections import LOCAL

RANGES = {"budget_ms": (20, 60_000), "invoked_budget_ms": (20, 60_000), "max_tokens": (1, 4096), "alternatives": (1, 8)}
CHOICES = {"completion": ("auto", "on", "off")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. JSON spells them in camelCase.

    enabled            whether to complete at all
    languages          completion by the editor's language id; false switches a language off
    budget_ms          maximum time from a change to its answer, which is the text generated so far
    invoked_budget_ms  the same for requests that the user invoked
    max_tokens         maximum length of a completion, in the target's tokens
    alternatives       number of completions for a request that the user invoked
    completion         textDocument/completion: auto (for clients without inlineCompletion), on or off
    more               whether to notify the client with codespec/more that a completion has grown
    snippets           whether to send snippets of other open files, definitions of imported files, and files that
                       drafts may copy from
    exclude            globs of files that are neither completed nor sent, as in .gitignore
    url                address of the daemon
    token_file         file with the daemon's token ("": none)
    start_daemon       whether to start a daemon if none answers
    model              model to start the daemon with, as named by `codespec models list` ("": the daemon's choice)
    daemon_arguments   further arguments of `codespec serve`, for example ["--target", "PATH"]
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
        """The host of the daemon."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port of the daemon."""
        return urlsplit(self.url).port or 80

    @property
    def daemon_is_here(self) -> bool:
        """Whether the daemon's address is on this machine."""
        return self.host in LOCAL

    def completes(self, language_id: str) -> bool:
        """Return whether files of a language are completed."""
        return self.enabled and self.languages.get(language_id, True)


def read_settings(values: object, above: Settings) -> tuple[Settings, list[str]]:
    """Return `above` updated with the settings from the client, and a sentence for each invalid one.

    Unknown names are ignored, since clients have their own settings.
    """
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
    """Return the value in the setting's type. Raises ValueError that says what it must be."""
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
