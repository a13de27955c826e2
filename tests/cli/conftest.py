"""Fixtures of the command-line tests: two tiny random models on disk with different tokenizers, and a way to call
`codespec`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from codespec.cli import main
from tests.tiny_models import tiny_network
from tests.toy_tokenizers import MARKERS, toy_backend

LONG = 8000  # tokens of a completion whose end no test waits for: seconds, even on a fast machine that is idle
FOLDERS = TemporaryDirectory(prefix="codespec-pair-")  # for the whole test run
SOURCE = '''"""Shapes."""

import math


class Circle:
    def __init__(self, radius):
        self.radius = radius

    def area(self):
        return math.pi * self.radius ** 2

    def circumference(self):
        return 2 * math.pi * self.radius


def total_area(circles):
    return sum(circle.area() for circle in circles)
'''


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a command."""

    code: int
    out: str
    err: str

    def check_mistake(self, *words: str) -> None:
        """Assert exit code 2, empty stdout, and one sentence on stderr that contains the words."""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert (self.code, len(lines), self.out) == (2, 1, ""), self
        assert lines[0].startswith("codespec: ") and lines[0].endswith("."), lines[0]
        for word in words:
            assert word in lines[0]


Command = Callable[..., Outcome]


@dataclass(frozen=True, slots=True)
class Models:
    """Folders of a pair."""

    target: Path
    drafter: Path
    dtype: str = ""

    @property
    def pair(self) -> list[str]:
        """Flags that select the pair."""
        number_format = ["--dtype", self.dtype] if self.dtype else []
        return ["--target", str(self.target), "--drafter", str(self.drafter), *number_format]

    @property
    def flags(self) -> list[str]:
        """Flags that select the pair and always draft: random models would never pay."""
        return [*self.pair, "--warmup", "0", "--policy", "fixed", "--draft-tokens", "8"]


def write_model(folder: Path, kind: str, seed: int, positions: int = 8192) -> Path:
    """Write a random Llama with one of the toy tokenizers as a complete Hugging Face folder."""
    backend = toy_backend(kind)
    network = tiny_network(
        "llama", vocab_size=backend.get_vocab_size(), seed=seed, max_position_embeddings=positions, eos_token_id=0
    )
    with torch.no_grad():  # no marker ends a text by chance
        network.lm_head.weight[[backend.token_to_id(name) for name in MARKERS]] = 0
    network.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": MARKERS[0]}))
    return folder


@cache
def write_pair() -> Models:
    """Write a pair with different tokenizers and different weights, once in a run."""
    own = Path(FOLDERS.name)
    return Models(write_model(own / "target", "gpt2", 0), write_model(own / "drafter", "bytes", 1))


@pytest.fixture(scope="session")
def models() -> Models:
    """Return the pair."""
    return write_pair()


@pytest.fixture(scope="session")
def light_models() -> Models:
    """Return the pair for the native kernels, which a process loads without torch: importing it is most of a start.

    For processes of which a test checks something else than the model.
    """
    return replace(write_pair(), dtype="native")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a short source file."""
    file = tmp_path / "shapes.py"
    file.write_text(SOURCE)
    return file


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all settings from the environment, and set a port without a daemon."""
    for name in [name for name in os.environ if name.startswith("CODESPEC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CODESPEC_SERVE_PORT", "1")


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Return a function that calls `codespec` in this process; transformers' log goes to stderr, as for a user."""
    logger = logging.getLogger("transformers")
    to_stderr = logging.StreamHandler(sys.stderr)
    logger.addHandler(to_stderr)

    def call(*words: str | Path) -> Outcome:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as exit:
            code = int(exit.code or 0)
        streams = capsys.readouterr()
        return Outcome(code, streams.out, streams.err)

    yield call
    logger.removeHandler(to_stderr)


def varies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every model fail the check of exact mode from now on."""
    monkeypatch.setattr("codespec.startup.batch_invariance.find_variance", lambda *_: "it varies")


Look = Callable[..., dict[str, str]]


@pytest.fixture
def look(command: Command, models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Look:
    """Return a function that runs the doctor without a probe, and returns its findings by name and its exit `code`."""
    monkeypatch.chdir(tmp_path)

    def examine(*words: str | Path, target: Path = models.target, drafter: str | Path = "none") -> dict[str, str]:
        return lines_of(command("doctor", "--no-probe", "--target", target, "--drafter", drafter, *words))

    return examine


def lines_of(done: Outcome) -> dict[str, str]:
    """Return the findings by name, each as "state: text"."""
    assert done.err == "" and "Traceback" not in done.out
    found = {"code": str(done.code)}
    for line in done.out.splitlines()[:-2]:
        state, name, message = line.split(maxsplit=2)
        assert state in ("ok", "warning", "failed") and name not in found, line
        found[name] = f"{state}: {message}"
        assert state == "ok" or ": " in message, "what is not well has a fix"
    assert done.code == any(message.startswith("failed") for message in found.values())
    return found
