"""Errors of a tensor-parallel group if a worker cannot start, and its patience between calls."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from codespec.engine.build import build_engine
from codespec.errors import ConfigError, ModelError
from codespec.models.parallel.group import start_group
from codespec.store.choice import resolve_engine

WAITS = """
import json, sys
from datetime import timedelta
from codespec.models.parallel import group

group.PATIENCE = timedelta(seconds=2)
rank, size, meeting, device = sys.argv[1:]
mine = group.join_group(int(rank), int(size), meeting, device)
with open(json.loads(sys.stdin.readline()), "w") as heard:
    print(*mine.listen(), file=heard)
mine.close()
"""


def test_a_worker_waits_for_its_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the timeout of an answer, since nobody types at night. Nothing in the working folder is executed."""
    (tmp_path / "codespec.py").write_text("raise SystemExit('a file of the working folder was run')\n")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "heard"
    group = start_group(2, "cpu", ("-c", WAITS), json.dumps(str(file)).encode())
    time.sleep(3)
    group.call("forward", 1)
    group.workers[0].wait(60)
    assert file.read_text() == "forward (1,)\n"
    group.close()


def test_a_share_that_can_not_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        build_engine(resolve_engine({"tensor_parallel": 2, "target": str(tmp_path)}))


def test_padding_and_sharing_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="can't be padded"):
        build_engine(resolve_engine({"tensor_parallel": 2, "target_shape": "qwen2.5-0.5b"}))
