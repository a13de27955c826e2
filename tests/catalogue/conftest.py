"""What the tests of the catalogue share: a tiny model with weights of 20 MB, a hub that has it, an empty store."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.catalogue.small_hub import SmallHub, serving
from tests.cli.processes import run, start, user_environment
from tests.tiny_models import tiny_network
from tests.toy_tokenizers import toy_backend

REPOSITORY = "tiny-people/tiny-coder"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A random model's files, the weights larger than the blocks of 10 MB that the hub's client writes."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_network("llama", vocab_size=20_000).save_pretrained(folder)
    toy_backend("gpt2").save(str(folder / "tokenizer.json"))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(files[WEIGHTS]) > 20e6
    return {**files, "LICENSE": b"Tiny.\n", "README.md": b"# Tiny\n", ".gitattributes": b"", "train.py": b"raise\n"}


@pytest.fixture
def hub(tiny_files: dict[str, bytes]) -> Iterator[SmallHub]:
    """A hub with the tiny model."""
    with serving(SmallHub(REPOSITORY, dict(tiny_files))) as running:
        yield running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store: the folder where pulled models come to lie."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("CODESPEC_")]:
        monkeypatch.delenv(name)
    return tmp_path / "data" / "codespec" / "models"


Command = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


def _environment(hub: SmallHub, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", **more}


@pytest.fixture
def models(hub: SmallHub) -> Command:
    """Runs `codespec models …` against the hub."""
    return lambda *words, **more: run("models", *words, **_environment(hub, **more))


@pytest.fixture
def begin(hub: SmallHub) -> Iterator[Start]:
    """Starts `codespec models …` against the hub; what still runs at the end is killed."""
    begun: list[subprocess.Popen[bytes]] = []

    def call(*words: str) -> subprocess.Popen[bytes]:
        begun.append(start("models", *words, env=user_environment(**_environment(hub))))
        return begun[-1]

    yield call
    for process in begun:
        process.kill()
        process.communicate()


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a command that failed, after the lines for its phases."""
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr, done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("codespec: ") and last.endswith("."), done.stderr
    return last
