"""A start resolves each model once and opens its files once: nothing is read again by a later step."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import Models, models  # noqa: F401
from tests.cli.processes import user_environment

START = """
import collections, json, sys
opened, resolved = collections.Counter(), collections.Counter()
def note(event, arguments):
    if event == "open":
        opened[str(arguments[0])] += 1
sys.addaudithook(note)
from codespec.cli import options
from codespec.api.config import EngineConfig
from codespec.server.daemon import Progress
from codespec.server.engine_thread import loader
from codespec.store import resolve
find = resolve.resolve
def count(name):
    resolved[name] += 1
    return find(name)
resolve.resolve = count
config = EngineConfig(target=sys.argv[1], drafter=sys.argv[2], dtype=sys.argv[3], drafter_dtype=sys.argv[3])
if sys.argv[4] == "daemon":
    loader(config, lambda: None)(Progress())
else:
    options.load_engine(config)
print(json.dumps([opened, resolved]))
"""


@pytest.mark.parametrize("by", ["daemon", "command"])
def test_a_start_opens_each_file_once(by: str, models: Models) -> None:  # noqa: F811
    words = [sys.executable, "-c", START, str(models.target), str(models.drafter), "native", by]
    done = subprocess.run(words, env=user_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    opened, resolved = json.loads(done.stdout)
    assert resolved == {str(models.target): 1, str(models.drafter): 1}
    for folder in (models.target, models.drafter):
        files = {name.removeprefix(f"{folder}/"): count for name, count in opened.items()}
        assert files["tokenizer.json"] == 1, files
        assert files["model.safetensors"] == 2, "its header, then the mapping"
        assert files["config.json"] == 2, "its shape, and by the tokenizer its ends"
