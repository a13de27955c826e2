"""A line of `codespec doctor` and `codespec check`: subject, state and fix. A user's mistake never raises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from codespec.errors import Fault

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result; `mend` says what to do, or is "" if nothing is needed."""

    name: str
    state: State
    said: str
    mend: str = ""

    @property
    def line(self) -> str:
        """The printed line."""
        said = f"{self.said}: {self.mend}" if self.mend else self.said
        return f"{self.state:<9}{self.name:<14}{' '.join(said.split())}"


def well(name: str, said: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(name, "ok", said)


def warning(name: str, said: str, mend: str) -> Finding:
    """Return a finding for something that works with limitations."""
    return Finding(name, "warning", said, mend)


def failed(name: str, said: str, mend: str) -> Finding:
    """Return a finding for something that does not work until it is fixed."""
    return Finding(name, "failed", said, mend)


def from_fault(name: str, fault: Fault) -> Finding:
    """Convert a fault to a failed finding."""
    return Finding(name, "failed", fault.problem, fault.mend)


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return what `--json` prints: whether nothing failed, and every finding."""
    checks = [asdict(finding) for finding in findings]
    return {"ok": all(check["state"] != "failed" for check in checks), "checks": checks}
