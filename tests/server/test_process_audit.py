"""A real daemon with an occasionally wrong verifier detects it in idle time, reports it, and continues in fast mode."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from codespec.contract.types import CompletionRequest
from codespec.engine.engine import Engine
from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import user_environment
from tests.server.daemons import wait_for
from tests.server.forked import run_forked, start_forked
from tests.server.test_jobs import PATH
from tests.server.test_process import Process

BODY = {"prefix": "def area(radius):\n    return radius", "max_tokens": 40, "shape": "raw"}
FAULT = """
from dataclasses import replace
from codespec.verify.verifier import Verifier

judge = Verifier._judge

def misjudge(self, turn, view):
    verdict = judge(self, turn, view)
    if not turn.candidates.ids or turn.sequence.num_generated < 8:
        return verdict
    return replace(verdict, committed=(*verdict.committed[:-1], (verdict.committed[-1] + 1) % 200))

Verifier._judge = misjudge
"""
SERVE = """
import sys
from codespec.cli import main

raise SystemExit(main(["serve", "--port", "0", "--no-prefetch", *sys.argv[1:]]))
"""


@contextmanager
def auditing(models: Models, folder: Path, *words: str, fault: str = "") -> Iterator[Process]:  # noqa: F811
    environment = user_environment(XDG_STATE_HOME=str(folder))
    with start_forked("-c", fault + SERVE, *models.flags, *words, env=environment) as process:
        try:
            served = Process(process)
            served.until_ready()
            yield served
        finally:
            process.kill()


def metric(served: Process, name: str, label: str) -> dict[str, float]:
    """Return a metric by a label, without zeros."""
    families = text_string_to_metric_families(served.ask("GET", "/metrics")[1].decode())
    samples = [sample for family in families for sample in family.samples if sample.name == f"codespec:{name}"]
    return {sample.labels[label]: sample.value for sample in samples if sample.value}


def complete(served: Process, **change: Any) -> None:
    status, told = served.ask("POST", PATH, {**BODY, **change})
    assert status == 200 and b'"finish_reason":"length"' in told


def test_a_planted_fault_is_found(models: Models, tmp_path: Path) -> None:  # noqa: F811
    with auditing(models, tmp_path, "--audit-every", "2", fault=FAULT) as served:
        assert metric(served, "mode", "mode") == {"exact": 1}
        for seed in range(2):
            complete(served, seed=seed)
        assert wait_for(lambda: metric(served, "audit_total", "result") == {"different": 1})
        assert metric(served, "mode", "mode") == {"fast": 1}
        health = json.loads(served.ask("GET", "/health")[1])
        assert health["mode"] == "fast" and "exact mode does not hold here" in health["notes"][-1]
        asked = run_forked("stats", "--url", f"http://127.0.0.1:{served.port}", XDG_STATE_HOME=str(tmp_path))
        table = asked.stdout.splitlines()
        assert {"mode           fast", "audits         different 1"} <= set(table)
        assert any(line.startswith("note: exact mode does not hold here") for line in table)
        for seed in range(2, 6):
            complete(served, seed=seed)
        assert metric(served, "audit_total", "result") == {"different": 1}
        assert metric(served, "requests_total", "kind") == {"interactive": 6}
        code, _, err = served.end(signal.SIGTERM)
    (file,) = (tmp_path / "codespec" / "audit").iterdir()
    (warning,) = (line for line in err.splitlines() if "WARNING" in line)
    assert code == 0 and str(file) in warning and BODY["prefix"][:9] not in err and "Traceback" not in err
    assert err.splitlines()[-1].startswith("codespec: exact mode does not hold here"), "as any note of the engine's"
    assert file.stat().st_mode & 0o777 == 0o600
    check_reproduces(json.loads(file.read_text())["content"], models)


def check_reproduces(content: dict[str, Any], models: Models) -> None:  # noqa: F811
    """Assert that the same request without the fault gives the plain text recorded in the file."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in content["request"].items()}
    engine = Engine.load(target=models.target, dtype=models.dtype, drafter=None, learn=False)
    (done,) = engine.complete([replace(CompletionRequest(**values), speculate=False)])
    (choice,) = content["choices"]
    assert values["seed"] == 1, "the second of two"
    assert (done.text, list(done.token_ids)) == (choice["plain"]["text"], choice["plain"]["token_ids"])
    assert choice["first_different_token"] >= 8 and choice["with_drafts"]["text"] != done.text
    assert content["target"] == "target" and content["drafter"] == "drafter" and content["processor"]


def test_without_a_fault_nothing_is_said(models: Models, tmp_path: Path) -> None:  # noqa: F811
    with auditing(models, tmp_path, "--audit-every", "1") as served:
        complete(served)
        assert wait_for(lambda: metric(served, "audit_total", "result") == {"same": 1})
        assert metric(served, "mode", "mode") == {"exact": 1}
        code, _, err = served.end(signal.SIGTERM)
    assert (code, err) == (0, "") and not (tmp_path / "codespec" / "audit").exists()
