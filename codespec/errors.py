"""Exceptions that are shown to the user as one sentence with the problem and the fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

FIELD = "\0"  # placeholder for the field's name in a fault's `what`


def install_fix(extras: str = "", flags: str = "", folder: str = ".") -> str:
    """Return the clause that tells the user how to install a package from its folder in codespec's checkout."""
    # The clause names a folder, because the package's name is not registered on the package index, so anyone could
    # register the name and run code on users' machines.
    package = f'"{folder}[{extras}]"' if extras else folder  # in quotes, because zsh expands brackets
    return f"run `{' '.join(['pip install', *flags.split(), package])}` in codespec's checkout"


def quoted(sentence: str) -> Fault:
    """Create a fault from another process's error sentence, without separating the problem and the fix."""
    return Fault("", sentence.removesuffix("."))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut to 160 characters, for quoting inside a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(" .")


@dataclass(frozen=True, slots=True)
class Fault:
    """A structured error, shown to the user as `sentence`."""

    code: str  # a stable id such as "model_incomplete", or "" if no code depends on it
    what: str  # the problem without a full stop; FIELD stands for the field's name, which differs between protocols
    fix: str = ""  # what the user should do, without a full stop; "" if unknown
    field: str = ""  # the invalid field of a request or setting

    @property
    def problem(self) -> str:
        """The problem, with FIELD replaced by the field's name."""
        return self.what.replace(FIELD, self.field)

    def within(self, what: str) -> Fault:
        """Return a fault whose problem is `what`, caused by this fault's problem."""
        return replace(self, what=f"{what}, because {self.what}")

    @property
    def clause(self) -> str:
        """The problem and its fix without a full stop, for use inside a sentence."""
        return f"{self.problem}: {self.fix}" if self.fix else self.problem

    @property
    def sentence(self) -> str:
        """The problem and its fix as one sentence."""
        return f"{self.clause}."


class CodespecError(Exception):
    """Base class of all errors that users see. A command exits with status 1 after a MismatchError, else with status 2.

    `problem` is a `Fault`, a whole sentence or, if `fix` is given, a clause without a full stop.
    """

    def __init__(self, problem: Fault | str, fix: str = "") -> None:
        if isinstance(problem, str):
            problem = Fault("", problem if fix else problem.removesuffix("."), fix)
        super().__init__(problem.sentence)
        self.fault = problem


class ConfigError(CodespecError):
    """An invalid option or configuration key."""


class RequestError(CodespecError):
    """A request that cannot be served. `field` is the name of the invalid field."""

    def __init__(self, problem: Fault | str, field: str = "") -> None:
        super().__init__(problem)
        if field:
            self.fault = replace(self.fault, field=field)

    @property
    def field(self) -> str:
        """The name of the invalid field, or ""."""
        return self.fault.field


class ModelError(CodespecError):
    """A model folder that is missing, broken or not supported."""


class TokenizerError(ModelError):
    """A tokenizer that does not round-trip bytes → ids → bytes."""


class PairError(CodespecError):
    """A target and a drafter that do not work together."""


class TrainingError(CodespecError):
    """A corpus, checkpoint or disk problem that stops a training run."""


class MismatchError(CodespecError):
    """Output in `exact` mode that differs from plain decoding, which is a bug in codespec and not a user error."""


class ServeError(CodespecError):
    """A request that the daemon can't accept now, or that the daemon has lost."""

    party = ""  # label in the metrics of another program that is at fault

    def __init__(self, problem: Fault | str, status: int = 503, retry_after: int = 0, state: str = "") -> None:
        super().__init__(problem)
        self.status = status  # HTTP status
        self.retry_after = retry_after  # seconds; 0: do not retry
        self.state = state  # "starting", "stopping" or "failed", if the daemon's state is the reason, else ""


class DaemonError(CodespecError):
    """Raised by the client if the daemon refuses a request, can't be reached or is not trusted."""

    def __init__(self, problem: Fault | str, fix: str = "", retry_after: float | None = None, status: int = 0) -> None:
        super().__init__(problem, fix)
        self.retry_after = retry_after  # seconds to wait before a retry, or None if a retry is useless
        self.status = status  # HTTP status, or 0 if there was no reply


class Absent(DaemonError):
    """Nothing listens at the address, or the daemon closed the connection before the end of a reply."""


class Unproven(DaemonError):
    """A peer that has not proved that it is the user's daemon."""

    def __init__(self, problem: Fault | str, fix: str = "", locked: bool = False) -> None:
        super().__init__(problem, fix)
        self.locked = locked  # whether the peer requires a token


State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of `codespec doctor` or `codespec check`."""

    name: str
    state: State
    message: str
    fix: str = ""  # what the user should do; "" if nothing needs to be done

    @property
    def line(self) -> str:
        """The finding as a line of a command's output."""
        message = f"{self.message}: {self.fix}" if self.fix else self.message
        return f"{self.state:<9}{self.name:<14}{' '.join(message.split())}"


def well(name: str, message: str) -> Finding:
    """Create a finding that reports no problem."""
    return Finding(name, "ok", message)


def warning(name: str, message: str, fix: str) -> Finding:
    """Create a finding for something that works with limitations."""
    return Finding(name, "warning", message, fix)


def failed(name: str, message: str, fix: str) -> Finding:
    """Create a finding for something that does not work."""
    return Finding(name, "failed", message, fix)


def from_fault(name: str, fault: Fault) -> Finding:
    """Convert a fault to a failed finding."""
    return Finding(name, "failed", fault.problem, fault.fix)


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the JSON object that `--json` prints: all findings, and `ok`, which is true if no check failed."""
    checks = [asdict(finding) for finding in findings]
    return {"ok": all(check["state"] != "failed" for check in checks), "checks": checks}
