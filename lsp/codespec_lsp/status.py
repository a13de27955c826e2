"""What the user is told: how the daemon is, which model serves and which better one it offers, and why the last
completion is as it is. Knows sentences; knows no protocol.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from codespec_lsp.daemon_client import Health
from codespec_lsp.settings import Settings
from codespec_lsp.version import VERSION

Kind = Literal["Normal", "Warning", "Error", "Inactive"]
REASONS = {"length": "it is as long as codespec.maxTokens allows", "deadline": "its time was over"}
KINDS: dict[str, Kind] = {"failed": "Error", "unwell": "Warning"}


@dataclass(frozen=True, slots=True)
class Status:
    """A kind as Copilot's clients know it, and why in one sentence."""

    kind: Kind = "Normal"
    message: str = ""
    busy: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"kind": self.kind, "message": self.message, "busy": self.busy}


class StatusLine:
    """Three things make it up: how the daemon is, what is to be known of its model while it is well, and why the
    document in use gets nothing ("" if it gets something)."""

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
        """What is to be seen."""
        if self._reason:
            return Status("Inactive", self._reason)
        return self._note if self._daemon == Status() else self._daemon

    @property
    def reason(self) -> str:
        """Why the document in use gets nothing; "" if it gets something."""
        return self._reason

    def daemon(self, state: str, message: str) -> None:
        """The daemon is `ready`, `starting`, `failed` or `unwell` (it failed, but nobody asked); why it failed is shown
        once, until it is ready again."""
        if state == "failed" and message not in self._complained:
            self._complained.add(message)
            self._complain(message)
        if state == "ready":
            self._complained.clear()
        self._daemon = Status(KINDS.get(state, "Normal"), message, state == "starting")
        self._update()

    def complain(self, sentence: str) -> None:
        """Something went wrong that the user can mend."""
        self._complain(sentence)

    def note(self, note: Status) -> None:
        """What the user should know of a daemon that is ready."""
        self._note = note
        self._update()

    def document(self, reason: str) -> None:
        """Why the document in use is not completed; "" where it is."""
        self._reason = reason
        self._update()

    def _update(self) -> None:
        if self.now != self._shown:
            self._shown = self.now
            self._show(self.now)


def explain(done: Mapping[str, Any], reason: str, milliseconds: float | None) -> dict[str, Any]:
    """The event itself with `sentences`. `reason` is why the document in use gets nothing ("" if it gets something),
    `milliseconds` the last request's time to an answer."""
    return {**done, "sentences": [sentence for sentence in _sentences(done, reason, milliseconds) if sentence]}


def last_completion(done: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last completion in four numbers, for a status line; None before the first one."""
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        return None
    counts = {name: stats.get(name, 0) for name in ("committed", "drafted", "accepted")}
    return {**counts, "speedUp": speed_up(stats)}


def _sentences(done: Mapping[str, Any], reason: str, milliseconds: float | None) -> Iterator[str]:
    yield reason
    if milliseconds is not None:
        yield f"The last answer took {milliseconds:.0f} ms."
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        yield "The daemon has completed nothing yet."
        return
    yield from _of_work(done, stats)
    ended = stats.get("ended") or REASONS.get(str(done.get("finish_reason")))
    yield f"The text ends where it does because {ended}." if ended else ""
    for note in stats.get("notes", []):
        yield _as_sentence(str(note))


def _as_sentence(note: str) -> str:
    """A note of the daemon's, with the setting's name for the field's."""
    named = note.replace("max_tokens", "the setting codespec.maxTokens", 1)
    return f"{named[:1].upper()}{named[1:]}."


def _of_work(done: Mapping[str, Any], stats: Mapping[str, Any]) -> Iterator[str]:
    """What was read, guessed and gained."""
    prompt, new = stats.get("prompt_tokens", 0), done.get("new_tokens", 0)
    if prompt:
        yield f"Of the prompt's {prompt} tokens {new} had to be read."
    drafted, accepted = stats.get("drafted", 0), stats.get("accepted", 0)
    yield f"{stats.get('committed', 0)} tokens were written in {stats.get('rounds', 0)} rounds."
    if drafted:
        sources = [f"{name} {_share(counts)}" for name, counts in stats.get("by_source", {}).items()]
        yield f"{accepted} of {drafted} drafted tokens were right{_in_brackets(sources)}."
    faster = speed_up(stats)
    if faster is not None:
        yield f"By the cost table that was {faster:.1f} × as fast as plain decoding."


def speed_up(stats: Mapping[str, Any]) -> float | None:
    """How many times as fast as plain decoding it was; None where that is not known."""
    decode, plain = stats.get("decode_ms", 0.0), stats.get("plain_ms", 0.0)
    return round(plain / decode, 2) if decode and plain else None


def _share(counts: Mapping[str, Any]) -> str:
    return f"{counts.get('accepted', 0)} of {counts.get('drafted', 0)}"


def _in_brackets(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """A model that the user may pull in place of the starter pair."""

    model: str
    bytes: int

    @property
    def sentence(self) -> str:
        """For a status line."""
        size = f"{self.bytes / 1e6:.0f} MB"
        return f"The small starter pair answers: `codespec models pull {self.model}` ({size}) brings a real one."

    def as_dict(self) -> dict[str, Any]:
        """For a client that asks the user and runs the command; `-P` as in `serve_command`."""
        command = [sys.executable, "-P", "-m", "codespec", "models", "pull", self.model]
        return {"model": self.model, "bytes": self.bytes, "command": command, "message": self.sentence}


def read_model_offer(health: Health, settings: Settings) -> ModelOffer | None:
    """What the daemon offers, where it runs on this machine and the settings name no model."""
    if health.state != "ready" or not health.offer or settings.model or not settings.daemon_is_here:
        return None
    model, size = health.offer.get("model"), health.offer.get("bytes")
    return ModelOffer(model, size) if isinstance(model, str) and model and isinstance(size, int) else None


def daemon_note(health: Health, settings: Settings) -> Status:
    """What the user should know of the daemon while it serves: of two faults the one that explains the other."""
    fault = version_fault(health, settings)
    return Status("Warning", fault) if fault else Status(message=model_note(health, settings))


def version_fault(health: Health, settings: Settings) -> str:
    """Why a daemon of another version than this language server's may misbehave, and the mend; "" for nothing."""
    if health.state != "ready" or health.version in ("", VERSION):
        return ""
    mend = "restart the daemon" if settings.daemon_is_here else "install one version on both machines"
    return f"The daemon at {settings.url} is codespec {health.version}, the language server {VERSION}: {mend}."


def model_note(health: Health, settings: Settings) -> str:
    """What the user should know of the daemon while it serves; "" for nothing."""
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
    """Whether a name means the daemon's model, which has several: its own, its hub id, in any case of letters."""
    return name.lower() in {known.lower() for known in (health.model, *health.names)}
