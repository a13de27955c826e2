"""Fixtures of the catalogue tests: a tiny model with 20 MB of weights, a hub that serves it, an empty store."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.processes import Ended, fork, start, user_environment
from tests.store.small_hub import SmallHub, serving
from tests.tiny_models import tiny_network
from tests.toy_tokenizers import toy_backend

REPOSITORY = "tiny-people/tiny-coder"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return a random model's files; its weights exceed the 10 MB blocks that the hub client writes."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_network("llama", vocab_size=20_000).save_pretrained(folder)
    toy_backend("gpt2").save(str(folder / "tokenizer.json"))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(files[WEIGHTS]) > 20e6
    return {**files, "LICENSE": b"Tiny.\n", "README.md": b"# Tiny\n", ".gitattributes": b"", "train.py": b"raise\n"}


@pytest.fixture
def hub(tiny_files: dict[str, bytes]) -> Iterator[SmallHub]:
    """Serve the tiny model."""
    with serving(SmallHub(REPOSITORY, dict(tiny_files))) as running:
        yield running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty store: the folder of pulled models."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("CODESPEC_")]:
        monkeypatch.delenv(name)
    return tmp_path / "data" / "codespec" / "models"


Command = Callable[..., Ended]
Start = Callable[..., "subprocess.Popen[bytes]"]


def _environment(hub: SmallHub, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", **more}


@pytest.fixture
def models(hub: SmallHub) -> Command:
    """Return a function that runs `codespec models …` against the hub."""
    return lambda *words, **more: fork("models", *words, **_environment(hub, **more))


@pytest.fixture
def begin(hub: SmallHub) -> Iterator[Start]:
    """Return a function that starts `codespec models …` against the hub; kill what still runs at the end."""
    begun: list[subprocess.Popen[bytes]] = []

    def call(*words: str) -> subprocess.Popen[bytes]:
        begun.append(start("models", *words, env=user_environment(**_environment(hub))))
        return begun[-1]

    yield call
    for process in begun:
        process.kill()
        process.communicate()


def sentence(done: Ended) -> str:
    """Return the one error sentence of a failed command, which follows its progress lines."""
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr, done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("codespec: ") and last.endswith("."), done.stderr
    return last
