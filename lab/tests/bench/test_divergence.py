"""`codespec bench divergence` from flags to figures, with the starter pair's target and tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codespec_lab.bench import divergence
from codespec_lab.bench.divergence import WINDOW, cut_windows, read_texts, weight_bytes
from codespec_lab.corpus.standard_library import held_out_files

from codespec.api.config import SHIPPED
from codespec.text.tokenizer import TextTokenizer
from tests.cli.conftest import Command, Models, command, models, plain_environment

__all__ = ["command", "models", "plain_environment"]


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the default texts: tokenizing all of them takes a second."""
    files = held_out_files()[:12]
    monkeypatch.setattr(divergence, "held_out_files", lambda: files)


@pytest.mark.usefixtures("few_files")
def test_a_format_against_itself_and_a_shorter_one(models: Models, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "divergence.json"
    words = ["--target", models.target, "--drafter", "none", "--tokens", "1500", "--threads", "1", "--json", out]
    done = command("bench", "divergence", "--dtype", "float32", *words)
    assert done.code == 0, done.err
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["kl"], found["same_first"]) == (0.0, 1.0) and found["loss_reference"] == found["loss_candidate"]
    assert 1000 < found["tokens"] < 2000 and str(tmp_path) not in out.read_text(encoding="utf-8")
    assert "float32 against float32" in done.out and "same first choice" in done.out and "100.00%" in done.out
    done = command("bench", "divergence", "--dtype", "bfloat16", *words)
    assert done.code == 0, done.err
    found = json.loads(out.read_text(encoding="utf-8"))
    assert 0 < found["kl"] < 0.01 and (found["reference"], found["candidate"]) == ("float32", "bfloat16")
    assert "loss in bfloat16" in done.out


def test_windows_are_spread_and_never_join_texts() -> None:
    tokenizer = TextTokenizer.from_folder(SHIPPED / "target")
    texts = [f"value_{n} = {n}\n" * 400 for n in range(6)]
    windows = cut_windows(tokenizer, texts, 3 * WINDOW)
    assert len(windows) == 3 and all(len(window) == WINDOW for window in windows)
    spelled = [tokenizer.decode_bytes(window).decode() for window in windows]
    assert len({n for n in range(6) for one in spelled if f"value_{n} " in one}) == 3
    assert len(cut_windows(tokenizer, ["x = 1\n"], 9)) == 1


def test_held_out_code_is_the_default() -> None:
    assert len(read_texts(())) > 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--files", "none.py", "--dtype", "bfloat16"], "none.py can't be read"),
        (["--dtype", "int3"], "invalid choice"),
        (["--dtype", "bfloat16", "--target", "./none"], "There is no model folder"),
        ([], "the following arguments are required: --dtype"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], message: str, models: Models, command: Command) -> None:
    pair = [] if "--target" in words else ["--target", models.target, "--drafter", "none"]
    command("bench", "divergence", *pair, *words).check_mistake(message)


@pytest.mark.usefixtures("few_files")
def test_models_that_do_not_fit_are_refused(models: Models, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "machine_memory", lambda: 1 << 10)
    words = ["--target", models.target, "--drafter", "none", "--dtype", "bfloat16"]
    command("bench", "divergence", *words).check_mistake("float32 and bfloat16 together need")


@pytest.mark.usefixtures("few_files")
def test_native_bits_of_a_folder(models: Models, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "divergence.json"
    words = ["--target", models.target, "--drafter", "none", "--tokens", "600", "--threads", "1", "--json", out]
    done = command("bench", "divergence", "--dtype", "native", *words)
    assert done.code == 0, done.err
    found = json.loads(out.read_text(encoding="utf-8"))
    assert 0 < found["kl"] < 0.1 and (found["reference"], found["candidate"]) == ("float32", "native")
    sizes = [weight_bytes(str(models.target), dtype) for dtype in ("float32", "bfloat16", "native")]
    assert sizes[0] == 2 * sizes[1] == sizes[2] == 4 * found["parameters"]  # rounded as they are loaded
