"""`codespec models`: the table, the messages and calls of a pull, removal, all without loading a model.

tests/store tests downloads with a hub and wheels.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from codespec.cli import models as models_command
from codespec.errors import ConfigError
from codespec.store import choice
from codespec.store import pull as pulling
from codespec.store.catalogue import read_catalogue
from codespec.store.choice import LARGER, SMALLER, pull_command, resolve_engine
from codespec.store.disk import written
from codespec.store.machine import write_step
from codespec.store.pulled import Pulled, folder_of
from codespec.store.resolve import ModelRef
from codespec.store.source import ModelSource
from tests.backends.gguf.files import write_model
from tests.cli.conftest import Command
from tests.cli.processes import run
from tests.cli.test_light import FIX, HEAVY

COLUMNS = ["name", "here", "use", "download", "memory", "fits", "token", "fim", "drafter", "licence"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty store."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data" / "codespec" / "models"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """Return a file that looks like GGUF from outside."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF" + bytes(2_000_000))
    return file


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names passed to the converter instead of converting."""
    found: list[str] = []
    monkeypatch.setattr(ModelRef, "folder", lambda model, dtype: found.append(f"{model.name} {dtype}"))
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names passed to pull instead of pulling."""
    names: list[str] = []

    def instead(
        sources: Sequence[ModelSource], say: Callable[[str], None], arrived: Callable[[int], None] | None
    ) -> Pulled:
        names.append(sources[0].name)
        return Pulled(sources[0].name, "here", "", "", {}, 0, "")

    monkeypatch.setattr(pulling, "pull", instead)
    return names


def test_the_table(command: Command, gguf: Path, converted: list[str]) -> None:
    command("models", "pull", gguf)
    done = command("models", "list")
    lines = done.out.splitlines()
    assert (done.code, done.err, lines[0].split()) == (0, "", COLUMNS)
    rows = {line.split()[0]: line for line in lines[1 : len(read_catalogue()) + 2]}
    assert rows.keys() == {*read_catalogue(), "tiny"}
    assert rows["smollm2-135m"].split()[:5] == ["smollm2-135m", "-", "completion", "93", "MB"]
    assert rows["sweep-next-edit-1.5b"].split()[:5] == ["sweep-next-edit-1.5b", "-", "edits", "1.5", "GB"]
    assert "pulled" in rows["tiny"] and "not stated" in rows["tiny"]
    assert rows["codegemma-2b"].endswith("Gemma Terms of Use, requires a login")
    lines = [line.removesuffix("  <- for this machine") for line in lines]
    assert "    2 GB  qwen2.5-coder-1.5b-instruct with the drafter that ships (Apache-2.0)" in lines
    assert "   80 GB  qwen2.5-coder-32b with qwen2.5-coder-1.5b (Apache-2.0)" in lines


def test_as_json(command: Command, home: Path) -> None:
    (home / ".part" / "owner--name").mkdir(parents=True)
    (home / ".part" / "owner--name" / "config.json").write_text("{}")
    (home / ".part" / "seed-coder-8b").mkdir()
    (home / ".part" / "seed-coder-8b" / "config.json").write_text("{}")
    found = json.loads(command("models", "list", "--json").out)
    rows = {row["name"]: row for row in found["models"]}
    assert found["home"] == str(home) and len(found["recommended"]) == 7
    assert rows["seed-coder-8b"]["here"] == rows["owner/name"]["here"] == "partly"
    assert rows["smollm2-135m"]["here"] == "" and rows["smollm2-135m"]["fim"] is True
    assert rows["zeta"]["edits"] == "zeta-1" and rows["smollm2-135m"]["edits"] == ""
    assert rows["qwen2.5-coder-7b"]["source"] == "Qwen/Qwen2.5-Coder-7B"


@pytest.mark.parametrize(
    ("token", "fits", "cell"), [(44.0, True, "yes"), (46.0, True, "slow"), (46.0, False, "no"), (None, True, "yes")]
)
def test_a_model_that_fits_may_be_slow(token: float | None, fits: bool, cell: str) -> None:
    listed = models_command.overview()
    row = next(row for row in listed["models"] if row["name"] == "qwen2.5-coder-7b")
    table = models_command.render({**listed, "models": [row | {"token": token, "fits": fits}]})
    assert re.split(" {2,}", table[1])[COLUMNS.index("fits")] == cell
    assert any("a token takes more than 45 ms" in line for line in table) is (cell == "slow")


@pytest.mark.parametrize(
    ("memory", "fits"), [(1e9, (True, False, False)), (16.5e9, (True, True, False)), (None, (None,) * 3)]
)
def test_what_fits(memory: float | None, fits: tuple[bool | None, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_command, "machine_memory", lambda: memory)
    rows = {row["name"]: row for row in models_command.overview()["models"]}
    assert tuple(rows[name]["fits"] for name in ("smollm2-135m", "deepseek-coder-6.7b", "qwen2.5-coder-7b")) == fits
    assert models_command.render(models_command.overview())


@pytest.mark.parametrize(("gpu", "best"), [(False, "qwen2.5-coder-0.5b-instruct"), (True, "deepseek-coder-6.7b")])
def test_which_is_recommended(gpu: bool, best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`recommend` has its own tests of the rule."""
    monkeypatch.setattr(choice, "machine_memory", lambda: 25_000_000_000)
    monkeypatch.setattr(models_command, "has_gpu", lambda: gpu)
    found = models_command.overview()
    lines = models_command.render(found)
    marked = [line.split()[2] for line in lines if line.endswith("<- for this machine")]
    assert found["best"] == best and marked == [best]
    assert f"for this machine: {best}, since {found['why']}" in lines


def test_whose_packaging_it_is(command: Command) -> None:
    lines = command("models", "list").out.splitlines()
    packed = "on the package index: packed by third parties; its SHA-256 is"
    assert f"qwen2.5-coder-1.5b-instruct {packed} that of Qwen's own file" in lines
    assert f"smollm2-135m {packed} in the catalogue" in lines


@pytest.mark.parametrize(
    ("name", "step", "advice"),
    [
        (SMALLER, 30.0, f"{LARGER} suits this machine better, since a token of the 1.5B model takes 30 ms here"),
        (LARGER, 60.0, f"{SMALLER} suits this machine better, since a token of the 1.5B model takes 60 ms here"),
        (LARGER, 30.0, ""),
        ("smollm2-135m", 30.0, ""),
    ],
)
def test_a_pull_says_which_suits_the_machine(
    name: str, step: float, advice: str, command: Command, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "machine_memory", lambda: 25_000_000_000)
    write_step(step)
    done = command("models", "pull", name)
    assert done.code == 0 and asked == [name]
    assert (advice in done.err) if advice else "suits" not in done.err


def test_a_pull_says_that_a_model_is_for_edits(command: Command, asked: list[str]) -> None:
    done = command("models", "pull", "sweepai/sweep-next-edit-1.5B")
    assert done.code == 0 and asked == ["sweep-next-edit-1.5b"]
    assert "sweep-next-edit-1.5b predicts edits (format sweep-server)" in done.err


def test_a_source_is_chosen(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("models", "pull", "smollm2-135m", "--source", "hub").check_mistake("smollm2-135m is not on the hub: ")


def test_a_file_is_converted_at_once(command: Command, gguf: Path, home: Path, converted: list[str]) -> None:
    done = command("models", "pull", gguf, "--name", "mine")
    assert (done.code, done.out.splitlines()) == (
        0,
        [f"mine: {home / 'mine' / 'tiny.gguf'}", "use it: codespec serve --target mine"],
    )
    assert converted == ["mine float32"]


@pytest.mark.usefixtures("home")
def test_a_file_that_needs_no_conversion_and_one_that_has_no_torch(
    command: Command, gguf: Path, tmp_path: Path, converted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("models", "pull", write_model(tmp_path / "native.gguf", "qwen2", "Q8_0")).code == 0
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    done = command("models", "pull", gguf)
    assert done.code == 0 and f"codespec: tiny needs torch: {FIX}\n" in done.err
    assert converted == []


@pytest.mark.parametrize(
    ("words", "pulled"),
    [
        (["qwen2.5-coder-7b"], ["qwen2.5-coder-7b", "qwen2.5-coder-0.5b"]),
        (["Qwen/Qwen2.5-Coder-7B", "--no-drafter"], ["qwen2.5-coder-7b"]),
        (["qwen2.5-coder-0.5b"], ["qwen2.5-coder-0.5b"]),
        (["owner/name"], ["owner/name"]),
    ],
    ids=str,
)
def test_the_drafter_comes_along(words: list[str], pulled: list[str], command: Command, asked: list[str]) -> None:
    done = command("models", "pull", *words)
    assert (done.code, asked) == (0, pulled)
    assert ("--no-drafter" in done.err) == (len(pulled) == 2)
    flag = "--target" if "owner/name" in pulled else "--model"
    more = " --drafter none" if "--no-drafter" in words else ""  # a drafter that was not pulled could not be loaded
    assert done.out.endswith(f"use it: codespec serve {flag} {pulled[0]}{more}\n")


def put(name: str) -> None:
    """Store a model in the Hugging Face layout as if it had been pulled."""
    folder_of(name).mkdir(parents=True)
    Pulled(name, "here", "", "", {}, 0, "").write_manifest(folder_of(name))


def test_what_a_pull_says_can_be_chosen(command: Command, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CODESPEC_MODEL", raising=False)
    put("qwen2.5-coder-7b")
    with pytest.raises(ConfigError, match=r"0\.5b has not been pulled"):
        resolve_engine({"model": "qwen2.5-coder-7b"}, None, {})
    config = resolve_engine({"model": "qwen2.5-coder-7b", "drafter": "none"}, None, {})
    assert (config.target, config.drafter) == ("qwen2.5-coder-7b", "none")
    put("qwen2.5-coder-0.5b")
    done = command("models", "pull", "qwen2.5-coder-7b", "--no-drafter")
    assert done.out.endswith("use it: codespec serve --model qwen2.5-coder-7b\n")


def test_a_file_with_large_letters_is_converted_too(command: Command, gguf: Path, converted: list[str]) -> None:
    command("models", "pull", gguf.rename(gguf.with_name("TINY.GGUF")))
    assert converted == ["tiny float32"]


def test_no_place_for_models_is_one_sentence(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/x")
    command("models", "pull", "smollm2-135m").check_mistake("smollm2-135m can't be pulled, because of /dev/null/x")


def test_one_size_is_written_in_one_way() -> None:
    entry = read_catalogue()["qwen2.5-coder-7b"]
    assert pull_command(entry.name).endswith(f"({written(entry.size)})")


def test_removed(command: Command, gguf: Path, home: Path, converted: list[str]) -> None:
    command("models", "pull", gguf)
    gguf.unlink()  # now only the store's copy is left
    done = command("models", "remove", "tiny")
    assert (done.code, done.out, done.err) == (0, "removed tiny: 2.0 MB freed\n", "")
    assert not (home / "tiny").exists()
    command("models", "remove", "tiny").check_mistake("tiny has not been pulled")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pull", "gpt"], "'gpt' is not in the catalogue"),
        (["pull", "./gone.gguf"], "There is no file or folder"),
        (["remove", "../x"], "is not a valid model name"),
        (["remove", "smollm2-135m"], "smollm2-135m has not been pulled: there are no models"),
        ([], "ACTION"),
        (["pull"], "NAME|HUB_ID|FILE.gguf|FOLDER"),
        (["fetch"], "invalid choice: 'fetch'"),
    ],
    ids=str,
)
def test_mistakes(words: list[str], message: str, command: Command) -> None:
    command("models", *words).check_mistake(message)


@pytest.mark.parametrize("words", [["list"], ["remove", "x"], ["pull", "x"]], ids=str)
def test_nothing_heavy_is_loaded(words: list[str]) -> None:
    done = run("models", *words, python=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "codespec.store.pulled" in imported and not imported & {*HEAVY, "huggingface_hub"}
