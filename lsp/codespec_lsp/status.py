"""Compose the status messages for the user: the daemon's state, its model and offers, and the last completion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    gets no completions ("" if it does).
    """

    def __init__(self, show: Callable[[Status], None], complain: Callable[[str], None]) -> None:
        self._show = show
        self._complain = complain
        self._daemon = Status()
        self._note = Status()
        self._reason = ""
        self._complained: set[str] = set()
        self._shown: Status | None = None

    @property
    def now(self) -> Status:
        """The status to show."""
        if self._reason:
            return Status("Inactive", self._reason)
        return self._note if self._daemon == Status() else self._daemon

    @property
    def reason(self) -> str:
        """The reason why the current document gets no completions, or ""."""
        return self._reason

    def daemon(self, state: str, message: str) -> None:
        """Set the daemon's state: `ready`, `starting`, `failed`, or `unwell` (a failure outside a user's request).

        A failure's reason is shown once until the daemon is ready again.
        """
        if state == "failed" and message not in self._complained:
            self._complained.add(message)
            self._complain(message)
        if state == "ready":
            self._complained.clear()
        self._daemon = Status(KINDS.get(state, "Normal"), message, state == "starting")
        self._update()

    def complain(self, sentence: str) -> None:
        """Report a problem that the user can fix."""
        self._complain(sentence)

    def note(self, note: Status) -> None:
        """Set the note about a ready daemon."""
        self._note = note
        self._update()

    def document(self, reason: str) -> None:
        """Set the reason why the current document is not completed, or ""."""
        self._reason = reason
        self._update()

    def _update(self) -> None:
        if self.now != self._shown:
            self._shown = self.now
            self._show(self.now)


def explain(
    done: Mapping[str, Any], reason: str, milliseconds: float | None, *, from_cache: bool = False
) -> dict[str, Any]:
    """Return the `done` event with `sentences` that explain it.

    `reason` is why the current document gets no completions ("" if it does), `milliseconds` the time to answer the last
    request, and `from_cache` whether no model ran for it: then `done` describes an earlier one.
    """
    sentences = _sentences(done, reason, milliseconds, from_cache)
    return {**done, "sentences": [sentence for sentence in sentences if sentence]}


def last_completion(done: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return four figures of the last completion for a status line, or None before the first one."""
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        return None
    counts = {name: stats.get(name, 0) for name in ("committed", "drafted", "accepted")}
    return {**counts, "speedUp": speed_up(stats)}


def _sentences(done: Mapping[str, Any], reason: str, milliseconds: float | None, from_cache: bool) -> Iterator[str]:
    yield reason
    if milliseconds is not None:
        yield f"The last answer took {milliseconds:.0f} ms."
    stats = done.get("stats")
    if from_cache and isinstance(stats, Mapping):
        yield "It came from the cache, without a model; the following is about the last completion that a model wrote."
    if not isinstance(stats, Mapping):
        yield "The daemon has completed nothing yet."
        return
    yield from _of_work(done, stats)
    ended = stats.get("ended") or REASONS.get(str(done.get("finish_reason")))
    yield f"The text ends where it does because {ended}." if ended else ""
    for note in stats.get("notes", []):
        yield f"Note: {note}."


def _of_work(done: Mapping[str, Any], stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences about the prefilled, drafted and accepted tokens and the speedup."""
    prompt, new = stats.get("prompt_tokens", 0), done.get("new_tokens", 0)
    if prompt:
        yield f"{new} of the prompt's {prompt} tokens had to be read."
    drafted, accepted = stats.get("drafted", 0), stats.get("accepted", 0)
    yield f"{stats.get('committed', 0)} tokens were written in {stats.get('rounds', 0)} rounds."
    if drafted:
        sources = [f"{name} {_share(counts)}" for name, counts in stats.get("by_source", {}).items()]
        yield f"{accepted} of {drafted} drafted tokens were right{_in_brackets(sources)}."
    faster = speed_up(stats)
    if faster is not None:
        yield f"The cost table estimates {faster:.1f} × the speed of plain decoding."


def speed_up(stats: Mapping[str, Any]) -> float | None:
    """Return the speedup over plain decoding, or None if it is unknown."""
    decode, plain = stats.get("decode_ms", 0.0), stats.get("plain_ms", 0.0)
    return round(plain / decode, 2) if decode and plain else None


def _share(counts: Mapping[str, Any]) -> str:
    return f"{counts.get('accepted', 0)} of {counts.get('drafted', 0)}"


def _in_brackets(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """A model that the user can pull to replace the starter pair."""

    model: str
    bytes: int

    @property
    def sentence(self) -> str:
        """The offer as a sentence for a status line."""
        size = f"{self.bytes / 1e6:.0f} MB"
        return f"The small starter pair answers: `codespec models pull {self.model}` ({size}) brings a real one."

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values for a client that asks the user and runs the command. `-P` as in `serve_command`."""
        command = [sys.executable, "-P", "-m", "codespec", "models", "pull", self.model]
        return {"model": self.model, "bytes": self.bytes, "command": command, "message": self.sentence}


def read_model_offer(health: Health, settings: EditorSettings) -> ModelOffer | None:
    """Return the daemon's offer if it runs on this machine and the settings name no model, else None."""
    if health.state != "ready" or not health.offer or settings.model or not settings.daemon_is_here:
        return None
    model, size = health.offer.get("model"), health.offer.get("bytes")
    return ModelOffer(model, size) if isinstance(model, str) and model and isinstance(size, int) else None


def daemon_note(health: Health, settings: EditorSettings) -> Status:
    """Return the note about a ready daemon. A version mismatch comes first, because it may explain other problems."""
    fault = version_fault(health, settings)
    return Status("Warning", fault) if fault else Status(message=model_note(health, settings))


def version_fault(health: Health, settings: EditorSettings) -> str:
    """Return a warning with a fix if the daemon's version differs from the language server's, else ""."""
    if health.state != "ready" or health.version in ("", VERSION):
        return ""
    fix = "restart the daemon" if settings.daemon_is_here else "install one version on both machines"
    return f"The daemon at {settings.url} is codespec {health.version}, the language server {VERSION}: {fix}."


def model_note(health: Health, settings: EditorSettings) -> str:
    """Return a note about the daemon's model: a warning, a mismatch with the settings, or an offer; "" for none."""
    if health.state != "ready":
        return ""
    if health.warning:
        return health.warning
    if settings.model and not _is_named(health, settings.model):
        other = health.model or health.target
        return (
            f"The daemon at {settings.url} was started with {other} and not with {settings.model}: restart "
            "the daemon, or unset codespec.model."
        )
    offered = read_model_offer(health, settings)
    return offered.sentence if offered else ""


def _is_named(health: Health, name: str) -> bool:
    """Return whether a name refers to the daemon's model: its name, its hub id or another, case-insensitively."""
    return name.lower() in {known.lower() for known in (health.model, *health.names)}
