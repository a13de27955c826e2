"""Read the user's editor settings from the client's JSON and check their types and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from codespec.api.limits import is_host, is_loopback
from codespec.api.settings import Setting, declared, setting

OVERHEAD_MS = 60  # milliseconds of a time budget that are not the daemon's: the server, syntax, HTTP


@dataclass(frozen=True, slots=True, kw_only=True)
class EditorSettings:
    """All settings of the language server. In JSON, the names of settings are in camelCase."""

    enabled: bool = setting(True, "on or off")
    languages: Mapping[str, bool] = setting(dict, 'languages to switch off: `{"markdown": false}`', shown="`{}`")
    budget_ms: int = setting(600, "the longest time from a change to its answer", least=20, most=60_000)
    invoked_budget_ms: int = setting(5000, "the same for explicit requests", least=20, most=60_000)
    max_tokens: int = setting(64, "the longest completion, in target tokens", least=1, most=4096)
    alternatives: int = setting(3, "how many suggestions an explicit request gets", least=1, most=8)
    completion: str = setting(
        "auto",
        "list completions as well: `auto` (if the client shows no ghost text), `on`, `off`",
        choices=("auto", "on", "off"),
    )
    next_edit: str = setting(
        "hint",
        "suggest the next edit: `hint` (a mark, and the whole edit once the cursor is there), `eager` (at once), `off`",
        choices=("hint", "eager", "off"),
    )
    next_edit_model: bool = setting(True, "let the daemon's model predict edits, if it was trained for that")
    next_edit_budget_ms: int = setting(
        1500, "the longest time from a request for an edit to its answer", least=20, most=60_000
    )
    more: bool = setting(True, "show a completion's first words early, then extend them")
    snippets: bool = setting(
        True,
        "send snippets of open files and signatures from imported ones to the model, and whole files to the daemon, to "
        "copy drafts from ([details](faq.md#what-of-other-files-does-the-model-see))",
    )
    exclude: tuple[str, ...] = setting((), "files neither completed nor sent, in `.gitignore` syntax", shown="`[]`")
    secret_files: tuple[str, ...] = setting(
        (), "more files that hold secrets, in `.gitignore` syntax: neither completed nor sent", shown="`[]`"
    )
    not_secret_files: tuple[str, ...] = setting(
        (),
        "files that are completed though their names look like those of secrets, in `.gitignore` syntax; they never go "
        "along with another file",
        shown="`[]`",
    )
    url: str = setting("http://127.0.0.1:8765", "the daemon")
    token_file: str = setting("", "a file with the daemon's token", shown='`""`')
    start_daemon: bool = setting(True, "start a daemon if none answers")
    model: str = setting("", "the model that the daemon starts with, from `codespec models list`", shown='`""`')
    daemon_arguments: tuple[str, ...] = setting(
        (), 'extra arguments for `codespec serve`, for example `["--target", "PATH"]`', shown="`[]`"
    )

    @property
    def port(self) -> int:
        """The port in the daemon's URL, or 80 if the URL has none."""
        return urlsplit(self.url).port or 80

    @property
    def daemon_is_here(self) -> bool:
        """Whether the daemon's address is on this machine."""
        return is_loopback(urlsplit(self.url).hostname or "")


def read_settings(
    values: object, above: EditorSettings, now: EditorSettings | None = None
) -> tuple[EditorSettings, list[str]]:
    """Return the settings `above`, updated with the client's `values`, and a sentence for each invalid setting.

    Invalid settings keep their values from `now`, as do all settings if `values` is not an object. Unknown names are
    ignored, because clients have settings of their own.
    """
    now = now or above
    if not isinstance(values, Mapping):
        return now, []
    inner = values.get("codespec", values)
    sent = inner if isinstance(inner, Mapping) else values
    changes: dict[str, Any] = {}
    faults: list[str] = []
    for item, facts in declared(EditorSettings).items():
        name = camel(item)
        if sent.get(name) is None:
            continue
        try:
            changes[item] = _read(item, sent[name], getattr(above, item), facts)
        except ValueError as error:
            changes[item] = getattr(now, item)
            faults.append(f"codespec.{name} must be {error}: its value is unchanged.")
    return replace(above, **changes), faults


def camel(name: str) -> str:
    """Convert a snake_case name to camelCase."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def _read(name: str, value: Any, default: Any, facts: Setting) -> Any:
    """Convert a JSON value to the type of a setting's default. Raises ValueError with a description of valid values."""
    if isinstance(default, tuple | Mapping) and value in ([], {}):  # Lua and PHP have one empty table for both
        return type(default)()
    match default:
        case bool():
            valid, must = isinstance(value, bool), "true or false"
        case int():
            must = f"a whole number from {facts.least} to {facts.most}"
            valid = type(value) is int and facts.allows(value)
        case str():
            must = f"one of {', '.join(facts.choices)}" if facts.choices else "a string"
            valid = isinstance(value, str) and (not facts.choices or value in facts.choices)
        case tuple():
            valid, must = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of strings"
        case _:
            must = "true or false by language"
            valid = isinstance(value, Mapping) and all(isinstance(item, bool) for item in value.values())
    if valid and name == "url":
        value, valid, must = value.rstrip("/"), _is_http(value), "an http address such as http://127.0.0.1:8765"
    if not valid:
        raise ValueError(must)
    return value if isinstance(default, str | int) else type(default)(value)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and is_host(parts.hostname or "") and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
