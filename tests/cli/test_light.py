"""Commands that must start fast, and without the engine's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import codespec
from tests.backends.gguf.files import write_model
from tests.cli.conftest import Command
from tests.cli.processes import fork, run, user_environment

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "safetensors",
    "aiohttp",
    "codespec.engine",
    "codespec.backends",
    "codespec.server",
)
BENCHES = ("policy", "decode", "serve", "typing", "quality", "step")
FIX = 'run `pip install ".[torch]"` in codespec\'s checkout'
BASE_FIX = "run `pip install .` in codespec's checkout"
# Runs before codespec, as if packages were not installed: neither found nor loaded.
ABSENT = """
import importlib.util, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.partition(".")[0] in {blocked!r} else find(name, *rest)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["complete", "--help"],
        ["train", "--help"],
        ["serve", "--help"],
        ["complete", "none.py:1:1"],
        ["complete", f"{__file__}:1:1", "--target", "./none"],
        ["complete", f"{__file__}:1:1", "--drafter", str(Path(__file__).parent)],
        ["bench", "step", "--target", "./none"],
    ],
    ids=str,
)
def test_nothing_heavy_is_loaded(words: list[str]) -> None:
    done = run(*words, python=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "codespec.cli" in imported and not imported & set(HEAVY)
    assert done.returncode == (2 if set(words) & {"none.py:1:1", "--target", "--drafter"} else 0)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"codespec {codespec.__version__}\n", "")


def test_help_names_all_commands_and_every_flag_has_its_help(command: Command) -> None:
    overview, complete = command("--help").out, command("complete", "--help").out
    for name in ("complete", "serve", "check", "doctor", "stats", "train", "distill"):
        assert f"    {name}" in overview
    for flag in ("--json", "--no-speculation", "--max-tokens", "--temperature", "--seed", "--show-draft", "--target"):
        assert flag in complete


def test_without_a_command_help_is_printed(command: Command) -> None:
    done = command()
    assert (done.code, done.out, done.err) == (0, command("--help").out, "")


@pytest.mark.parametrize("line", ["complete", "serve", "doctor", *(f"bench {name}" for name in BENCHES)])
def test_help_fits_a_screen_and_help_all_has_the_rest(
    line: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (command(*line.split(), flag).out for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 40 and "--help-all" in short
    for flag in ("--model", "--target", "--drafter", "--dtype", "--mode"):
        assert flag in short and flag in whole
    for flag in ("--policy", "--caps", "--draft-tokens", "--threads"):
        assert f"{flag} " not in short and flag in whole


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("complete {source}:1:1 --dtype float32", "torch"),
        ("complete {source}:1:1 --dtype bfloat16", "transformers"),
        ("train tokenizers", "torch"),
    ],
)
def test_without_the_engines_packages(words: str, missing: str, source: Path) -> None:
    done = fork(*words.format(source=source).split(), before=ABSENT.format(blocked=(missing,)))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"codespec: {missing} is not installed: {FIX}.\n"


def test_without_kernels_and_torch_the_kernels_are_what_is_missing(source: Path) -> None:
    absent = ABSENT.format(blocked=("torch", "codespec_native"))
    for words in (("complete", f"{source}:1:1", "--local"), ("doctor", "--no-probe")):
        done = fork(*words, before=absent)
        message = done.stderr + done.stdout
        assert done.returncode != 0 and "ative kernels are not installed: run `pip install ./native`" in message, (
            message
        )


def test_the_language_server_without_its_packages() -> None:
    done = fork("lsp", before=ABSENT.format(blocked=("pygls",)))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "codespec: pygls is not installed: run `pip install .` in codespec's checkout.\n"


def test_packages_that_do_not_load(tmp_path: Path, source: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    done = run("complete", f"{source}:1:1", "--dtype", "float32", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert (
        "libgomp.so.1" in done.stderr
        and 'run `pip install --force-reinstall ".[torch]"` in codespec\'s checkout' in done.stderr
    )


def test_the_demo_says_it_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(ABSENT.format(blocked=("torch",)))
    done = subprocess.run(
        [sys.executable, "-m", "codespec_lab.commands.demo", "--model", "starter"],
        env=user_environment(PYTHONPATH=str(tmp_path), CODESPEC_DTYPE="float32"),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"codespec: torch is not installed: {FIX}.\n"


WITHOUT = ABSENT.format(blocked=("torch", "transformers", "safetensors", "peft"))


@pytest.mark.parametrize("speculation", ["--no-speculation", "--local"])
def test_complete_writes_the_same_text_with_and_without_speculation(speculation: str, source: Path) -> None:
    done = fork("complete", f"{source}:1:1", "--local", speculation, before=WITHOUT)
    assert (done.returncode, done.stdout) == (0, fork("complete", f"{source}:1:1", "--local", before=WITHOUT).stdout)


def test_doctor_tries_the_engine() -> None:
    done = fork("doctor", before=WITHOUT)
    assert done.returncode == 0 and "24 tokens twice, equal" in done.stdout
    assert "exact mode holds by construction: native" in done.stdout


def test_a_conversation_is_rendered() -> None:
    """By the process that renders chat templates; it needs jinja2 alone."""
    asked = '{"template": "{{ messages[0].content }}!", "messages": [{"content": "hello"}], "tokens": {}}'
    words = [sys.executable, "-c", f"{WITHOUT}\nfrom codespec.server.chat_template_process import main\nmain()"]
    done = subprocess.run(words, input=f"{asked}\n", capture_output=True, text=True)
    assert done.stdout.splitlines() == ["{}", '{"text": "hello!"}'], done.stderr


def test_a_gguf_file(tmp_path: Path, source: Path) -> None:
    file = write_model(tmp_path / "m.gguf", "qwen2", "Q8_0")
    for words in (("complete", f"{source}:2:1", "--local"), ("doctor",)):
        done = fork(*words, "--target", str(file), before=WITHOUT)
        assert done.returncode == 0, done.stderr + done.stdout
