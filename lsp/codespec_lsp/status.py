"""Compose the status messages for the user: the daemon's state, its model and offers, and the last completion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from codespec import __version__
from codespec.client.daemon_client import Health
from codespec_lsp.settings import EditorSettings

VERSION = __version__  # the language server's, which is codespec's
Kind = Literal["Normal", "Warning", "Error", "Inactive"]
REASONS = {"length": "it is as long as codespec.maxTokens allows", "deadline": "its time limit was reached"}
KINDS: dict[str, Kind] = {"failed": "Error", "unwell": "Warning"}


@dataclass(frozen=True, slots=True)
class Status:
    """A status kind as used by Copilot's clients, with the reason in one sentence."""

    kind: Kind = "Normal"
    message: str = ""
    busy: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"kind": self.kind, "message": self.message, "busy": self.busy}


class StatusLine:
    """The status shown to the user.

    It combines the daemon's state, a note about its model while it is ready, and the reason why the current document
    gets no completions ("" if it does). `complain` reports a problem that the user can fix.
    """

    def __init__(self, show: Callable[[Status], None], complain: Callable[[str], None]) -> None:
        self._show = show
        self.complain = complain
        self._daemon = Status()
        self._note = Status()
        self.reason = ""  # why the current document gets no completions
        self._complained: set[str] = set()
        self._shown: Status | None = None

    @property
    def now(self) -> Status:
        """The status to show."""
        if self.reason:
            return Status("Inactive", self.reason)
        return self._note if self._daemon == Status() else self._daemon

    def daemon(self, state: str, message: str) -> None:
        """Set the daemon's state: `ready`, `starting`, `failed`, or `unwell` (a failure outside a user's request).

        A failure's reason is shown once until the daemon is ready again.
        """
        if state == "failed" and message not in self._complained:
            self._complained.add(message)
            self.complain(message)
        if state == "ready":
            self._complained.clear()
        self._daemon = Status(KINDS.get(state, "Normal"), message, state == "starting")
        self._update()

    def note(self, note: Status) -> None:
        """Set the note about a ready daemon."""
        self._note = note
        self._update()

    def document(self, reason: str) -> None:
        """Set the reason why the current document is not completed, or ""."""
        self.reason = reason
        self._update()

    def _update(self) -> None:
        if self.now != self._shown:
            self._shown = self.now
            self._show(self.now)


def explain(
    done: Mapping[str, Any], reason: str, milliseconds: float | None, *, from_cache: bool = False
) -> Iterator[str]:
    """Yield sentences that explain a `done` event; "" says nothing.

    `reason` is why the current document gets no completions ("" if it does). `milliseconds` is the time that the last
    answer took. With `from_cache` no model ran for it, and `done` describes an earlier request.
    """
    yield reason
    if milliseconds is not None:
        yield f"The last answer took {milliseconds:.0f} ms."
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        yield "The daemon has completed nothing yet."
        return
    if from_cache:
        yield "It came from the cache, without a model; the following is about the last completion that a model wrote."
    if prompt := stats.get("prompt_tokens", 0):
        yield f"{done.get('new_tokens', 0)} of the prompt's {prompt} tokens had to be read."
    yield f"{stats.get('committed', 0)} tokens were written in {stats.get('rounds', 0)} rounds."
    if drafted := stats.get("drafted", 0):
        sources = [f"{name} {_share(counts)}" for name, counts in stats.get("by_source", {}).items()]
        by_source = f" ({', '.join(sources)})" if sources else ""
        yield f"{stats.get('accepted', 0)} of {drafted} drafted tokens were right{by_source}."
    faster = speed_up(stats)
    if faster is not None:
        yield f"The cost table estimates {faster:.1f} × the speed of plain decoding."
    ended = stats.get("ended") or REASONS.get(str(done.get("finish_reason")))
    yield f"The text ends where it does because {ended}." if ended else ""
    for note in stats.get("notes", []):
        yield f"Note: {note}."


def last_completion(done: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return four figures of the last completion for a status line, or None before the first one."""
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        return None
    counts = {name: stats.get(name, 0) for name in ("committed", "drafted", "accepted")}
    return {**counts, "speedUp": speed_up(stats)}


def speed_up(stats: Mapping[str, Any]) -> float | None:
    """Return the speedup over plain decoding, or None if it is unknown."""
    decode, plain = stats.get("decode_ms", 0.0), stats.get("plain_ms", 0.0)
    return round(plain / decode, 2) if decode and plain else None


def _share(counts: Mapping[str, Any]) -> str:
    return f"{counts.get('accepted', 0)} of {counts.get('drafted', 0)}"


def read_model_offer(health: Health, settings: EditorSettings) -> dict[str, Any] | None:
    """Return the daemon's offer of a model if it runs on this machine and the settings name no model, else None.

    It has the `command` that a client runs if the user agrees, with `-P` as in `serve_command`.
    """
    if health.state != "ready" or not health.offer or settings.model or not settings.daemon_is_here:
        return None
    model, size = health.offer.get("model"), health.offer.get("bytes")
    if not isinstance(model, str) or not model or not isinstance(size, int):
        return None
    return {
        "model": model,
        "bytes": size,
        "command": [sys.executable, "-P", "-m", "codespec", "models", "pull", model],
        "message": f"The small starter pair answers: `codespec models pull {model}` ({size / 1e6:.0f} MB) brings a "
        "real one.",
    }


def daemon_note(health: Health, settings: EditorSettings) -> Status:
    """Return the note about a ready daemon. A version mismatch comes first, because it may explain other problems."""
    if health.state != "ready" or health.version in ("", VERSION):
        return Status(message=model_note(health, settings))
    fix = "restart the daemon" if settings.daemon_is_here else "install one version on both machines"
    about = f"The daemon at {settings.url} is codespec {health.version}, the language server {VERSION}: {fix}."
    return Status("Warning", about)


def model_note(health: Health, settings: EditorSettings) -> str:
    """Return a note about the daemon's model: a warning, a mismatch with the settings, or an offer; "" for none."""
    if health.state != "ready":
        return ""
    if health.warning:
        return health.warning
    if settings.model and settings.model.lower() not in {name.lower() for name in (health.model, *health.names)}:
        other = health.model or health.target
        return (
            f"The daemon at {settings.url} was started with {other} and not with {settings.model}: restart "
            "the daemon, or unset codespec.model."
        )
    offered = read_model_offer(health, settings)
    return offered["message"] if offered else ""
