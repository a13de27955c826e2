"""The status and the counters that a user can read, and the sentences about the daemon and the last completion."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from codespec import __version__
from codespec.client.daemon_client import Health
from codespec_lsp.settings import EditorSettings, camel

VERSION = __version__  # of the language server, the same as codespec's
StatusKind = Literal["Normal", "Warning", "Error", "Inactive"]
REASONS = {"length": "it is as long as codespec.maxTokens allows", "deadline": "its time limit was reached"}
KINDS: dict[str, StatusKind] = {"failed": "Error", "unwell": "Warning"}


@dataclass(frozen=True, slots=True)
class Status:
    """A status: a kind that Copilot's clients know, and a sentence that explains the status."""

    kind: StatusKind = "Normal"
    message: str = ""
    busy: bool = False


@dataclass(slots=True)
class Counters:
    """The counters of one client since it connected; lsp/README.md explains them."""

    questions: int = 0
    answered: int = 0
    superseded: int = 0
    cancelled: int = 0
    from_memory: int = 0
    from_daemon: int = 0
    cut_by_the_clock: int = 0
    more: int = 0
    shown: int = 0
    accepted: int = 0
    partly_accepted: int = 0
    accepted_characters: int = 0
    dismissed: int = 0
    kept_quiet: int = 0
    edits_shown: int = 0
    edits_accepted: int = 0
    edits_dismissed: int = 0
    milliseconds: deque[float] = field(default_factory=lambda: deque(maxlen=512))  # answer times of the last requests

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as JSON values with camelCase names."""
        counts = {camel(name): value for name, value in asdict(self).items() if name != "milliseconds"}
        accepted, times = self.accepted + self.partly_accepted, sorted(self.milliseconds)
        return {
            **counts,
            "acceptance": round(accepted / self.shown, 4) if self.shown else 0.0,
            "lastMs": round(self.milliseconds[-1], 1) if times else None,
            "medianMs": round(times[len(times) // 2], 1) if times else None,
        }


class StatusLine:
    """The status shown to the user. `complain` reports a problem that the user can fix."""

    def __init__(self, show: Callable[[Status], None], complain: Callable[[str], None]) -> None:
        self._show = show
        self.complain = complain
        self._daemon = Status()
        self._note = Status()
        self.state = ("ready", "")  # of the daemon, with its message
        self.reason = ""  # why the current document gets no completions, or ""
        self._complained: set[str] = set()
        self._shown: Status | None = None

    @property
    def now(self) -> Status:
        if self.reason:
            return Status("Inactive", self.reason)
        return self._note if self._daemon == Status() else self._daemon

    def daemon(self, state: str, message: str) -> None:
        """Set the daemon's state to `ready`, `starting`, `failed`, or `unwell` (a failure outside a user's request).

        The message of a failure is also passed to `complain`, but only once until the daemon is ready again.
        """
        if state == "failed" and message not in self._complained:
            self._complained.add(message)
            self.complain(message)
        if state == "ready":
            self._complained.clear()
        self.state = state, message
        self._daemon = Status(KINDS.get(state, "Normal"), message, state == "starting")
        self._update()

    def note(self, note: Status) -> None:
        """Set the status that is shown while the daemon is ready."""
        self._note = note
        self._update()

    def document(self, reason: str) -> None:
        """Set the reason why the current document gets no completions, or ""."""
        self.reason = reason
        self._update()

    def _update(self) -> None:
        if self.now != self._shown:
            self._shown = self.now
            self._show(self.now)


def explain(
    done: Mapping[str, Any], reason: str, milliseconds: float | None, *, from_cache: bool = False
) -> Iterator[str]:
    """Yield sentences about the last answer and the last `done` event, which is older if the answer is `from_cache`."""
    if reason:
        yield reason
    if milliseconds is not None:
        yield f"The last answer took {milliseconds:.0f} ms."
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        yield "The daemon has completed nothing yet."
        return
    if from_cache:
        yield "It came from the cache, without a model: the next sentences are about the last completion by a model."
    if prompt := stats.get("prompt_tokens", 0):
        yield f"{done.get('new_tokens', 0)} of the prompt's {prompt} tokens had to be read."
    yield f"{stats.get('committed', 0)} tokens were written in {stats.get('rounds', 0)} rounds."
    if drafted := stats.get("drafted", 0):
        sources = [
            f"{name} {counts.get('accepted', 0)} of {counts.get('drafted', 0)}"
            for name, counts in stats.get("by_source", {}).items()
        ]
        by_source = f" ({', '.join(sources)})" if sources else ""
        yield f"{stats.get('accepted', 0)} of {drafted} drafted tokens were right{by_source}."
    if (faster := speed_up(stats)) is not None:
        yield f"The cost table estimates {faster:.1f} × the speed of plain decoding."
    if ended := stats.get("ended") or REASONS.get(str(done.get("finish_reason"))):
        yield f"The text ends where it does because {ended}."
    for note in stats.get("notes", []):
        yield f"Note: {note}."


def last_completion(done: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the token counts and the speedup of the last completion, or None before the first completion."""
    stats = done.get("stats")
    if not isinstance(stats, Mapping):
        return None
    counts = {name: stats.get(name, 0) for name in ("committed", "drafted", "accepted")}
    return {**counts, "speedUp": speed_up(stats)}


def speed_up(stats: Mapping[str, Any]) -> float | None:
    """Return the estimated speedup over plain decoding, or None if it is unknown."""
    decode, plain = stats.get("decode_ms", 0.0), stats.get("plain_ms", 0.0)
    return round(plain / decode, 2) if decode and plain else None


def read_model_offer(health: Health, settings: EditorSettings) -> dict[str, Any] | None:
    """Return the daemon's offer to download a model, or None if the settings name a model or another machine."""
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
    """Return the status of a ready daemon: a version mismatch, the daemon's warning, a model mismatch, or an offer."""
    if health.state != "ready":
        return Status()
    if health.version not in ("", VERSION):
        fix = "restart the daemon" if settings.daemon_is_here else "install one version on both machines"
        versions = f"The daemon at {settings.url} is codespec {health.version}, the language server {VERSION}"
        return Status("Warning", f"{versions}: {fix}.")
    if health.warning:
        return Status(message=health.warning)
    if settings.model and settings.model.lower() not in {name.lower() for name in (health.model, *health.names)}:
        other = f"{health.model or health.target} and not with {settings.model}"
        fix = "restart the daemon, or unset codespec.model"
        return Status(message=f"The daemon at {settings.url} was started with {other}: {fix}.")
    offered = read_model_offer(health, settings)
    return Status(message=offered["message"] if offered else "")
