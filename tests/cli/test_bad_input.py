"""User errors on the command line, in files and in variables: exit code 2 and one sentence with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from codespec.api.config import SHIPPED
from tests.cli.conftest import Command, Models

PLACE = "a.py:1:1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a current folder with a good file, a binary file and one that is not UTF-8."""
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("x = 1\ny = 2\n")
    Path("latin.py").write_bytes(b"x = 'caf\xe9'\n")
    Path("elf").write_bytes(b"\x7fELF\x02\x01\0")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("guess", "invalid choice: 'guess'"),
        ("--verbose", "unrecognized arguments: --verbose; see `codespec --help`."),
        ("--vers", "unrecognized arguments: --vers; see `codespec --help`."),
        ("complete", "required: FILE:LINE:COL; see `codespec complete --help`."),
        (f"complete {PLACE} b.py:1:1", "unrecognized arguments: b.py:1:1; see `codespec complete --help`."),
        (f"complete {PLACE} --bogus", "unrecognized arguments: --bogus; see `codespec complete --help`."),
        (f"complete {PLACE} --bogus=1 -x", "unrecognized arguments: --bogus=1 -x;"),
        (f"complete {PLACE} --max 3", "unrecognized arguments: --max 3;"),
        (f"complete {PLACE} --no-spec", "unrecognized arguments: --no-spec;"),
        (f"complete {PLACE} --json --show-draft", "not allowed with argument"),
        (f"complete {PLACE} --max-tokens", "--max-tokens: expected one argument"),
        (f"complete {PLACE} --max-tokens few", "--max-tokens: invalid int value: 'few'"),
        (f"complete {PLACE} --temperature warm", "--temperature: invalid float value: 'warm'"),
        (f"complete {PLACE} --shape round", "choose from 'auto', 'line', 'block', 'raw'"),
        (f"complete {PLACE} --dtype float8", "choose from 'float32', 'bfloat16', 'float16'"),
        (f"complete {PLACE} --drafter-dtype int4", "choose from 'float32', 'bfloat16', 'float16', 'native'"),
        (f"complete {PLACE} --mode slow", "choose from 'exact', 'fast'"),
        (f"complete {PLACE} --proposers luck", "choose from 'chain', 'prediction', 'suffix', 'head', 'draft_model'"),
        ("check --bogus", "unrecognized arguments: --bogus; see `codespec check --help`."),
        ("check --tar x", "unrecognized arguments: --tar x;"),
        ("train", "see `codespec train --help`."),
        ("train fly", "invalid choice: 'fly'"),
        ("train pretrain drafter --min 3", "unrecognized arguments: --min 3; see `codespec train pretrain --help`."),
        ("train pretrain judge", "invalid choice: 'judge'"),
        ("distill", "required: --target, --drafter, --code, --out; see `codespec distill --help`."),
    ],
)
def test_arguments(line: str, words: str, command: Command) -> None:
    command(*line.split()).check_mistake(words)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("a.py", "'a.py' is not of the form FILE:LINE:COL: write, for example, src/app.py:12:8."),
        ("a.py:1", "is not of the form FILE:LINE:COL"),
        ("a.py:one:1", "is not of the form FILE:LINE:COL"),
        ("a.py:-1:1", "is not of the form FILE:LINE:COL"),
        ("a.py:0:1", "Line 0 is outside the file: choose a line from 1 to 3."),
        ("a.py:4:1", "Line 4 is outside the file: choose a line from 1 to 3."),
        ("a.py:1:0", "Column 0 is outside line 1: choose a column from 1 to 6."),
        ("a.py:1:7", "Column 7 is outside line 1: choose a column from 1 to 6."),
        ("a.py:3:2", "Column 2 is outside line 3: choose a column from 1 to 1."),
        ("none.py:1:1", "none.py can't be read (No such file or directory): check the path."),
        (".:1:1", "can't be read (Is a directory): check the path."),
        ("a.py/b:1:1", "can't be read (Not a directory): check the path."),
        ("two\nlines:1:1", "two lines can't be read"),
        ("latin.py:1:1", "latin.py is not UTF-8 text (byte 8): convert the file to UTF-8."),
        ("elf:1:1", "elf is binary (a NUL at character 6): choose a text file."),
    ],
)
def test_places(place: str, words: str, command: Command) -> None:
    command("complete", place).check_mistake(words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device", "gpu"], "device = 'gpu' is unknown: choose one of auto, cpu, cuda."),
        (["--device", "meta"], "device = 'meta' is unknown: choose one of auto, cpu, cuda."),
        (["--policy", "bold"], "policy = 'bold' is unknown: choose one of cost+syntax, cost, fixed,"),
        (["--policy", "fixed:many"], "only `fixed` takes a number, for example fixed:3."),
        (["--policy", "cost:3"], "only `fixed` takes a number, for example fixed:3."),
        (["--caps", "comment"], "write class=tokens, for example comment=10"),
        (["--caps", "prose=3"], "'prose' is not a context or language.context"),
        (["--caps", "cobol.comment=3"], "'cobol.comment' is not a context or language.context"),
        (["--threads", "-1"], "threads = -1 is too small: it must be at least 0."),
        (["--threads", "100000"], "threads = 100000 is too large: it must be at most 256."),
        (["--context", "10"], "context = 10 is too small: it must be at least 64."),
        (["--draft-tokens", "-1"], "draft_tokens = -1 is too small"),
        (["--warmup", "-1"], "warmup = -1 is too small"),
        (["--target", "~nobody-here/model"], "give the absolute path"),
        (["--config", "none.toml"], "none.toml can't be read (No such file or directory): check its path."),
        (["--config", "."], "can't be read (Is a directory)"),
        (["--config", "elf"], "elf is not valid TOML"),
        (["--config", "latin.py"], "latin.py is not UTF-8 text (byte 8): save it as UTF-8."),
    ],
)
def test_settings(words: list[str], sentence: str, command: Command) -> None:
    command("complete", PLACE, *words).check_mistake(sentence)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pretrain drafter --threads 0", "--threads 0 is out of range: choose 1 to 256."),
        ("pretrain target --threads 257", "--threads 257 is out of range"),
        ("pretrain drafter --minutes 0", "--minutes 0.0 is out of range: it must be above 0."),
        ("pretrain drafter --minutes nan", "--minutes nan is out of range"),
        ("distill-data --minutes inf", "--minutes inf is out of range"),
        ("pretrain drafter --steps -1", "--steps -1 is out of range: choose 1 or more"),
        ("--work none pretrain drafter", "run `codespec train corpus` first"),
    ],
)
def test_training(line: str, words: str, command: Command) -> None:
    command("train", *line.split()).check_mistake(words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--threads 0", "--threads 0 is out of range: choose 1 to 256."),
        ("--minutes nan", "--minutes nan is out of range: it must be above 0."),
        ("--rounds -1", "--rounds -1 is out of range: choose 0 or more."),
        ("--rate 3", "--rate 3.0 is out of range: choose above 0, up to 0.1."),
        ("--code none", "There is no folder none: name a folder with code in --code."),
        ("--out latin.py", "latin.py exists already, and nothing is overwritten: choose another --out."),
        ("--resume", "There is no run to continue in ../new.work: begin without --resume."),
        ("--drafter new:3", "new:3 is no drafter: a new one has the size 1M or 5M, as in new:1M."),
    ],
)
def test_distilling(line: str, words: str, command: Command) -> None:
    pair = ("--target", str(SHIPPED / "target"), "--drafter", str(SHIPPED / "drafter"))
    command("distill", *pair, "--code", ".", "--out", "../new", *line.split()).check_mistake(words)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("threads = ", "c.toml is not valid TOML (Invalid value (at"),
        ("thread = 2", "Unknown setting thread in c.toml: the closest is threads."),
        ("[engine]\nthreads = 2", "Unknown setting engine in c.toml"),
        ('threads = "2"', "threads in c.toml = '2' is invalid: it must be a whole number."),
        ("threads = 2.0", "threads in c.toml = 2.0 is invalid: it must be a whole number."),
        ("threads = true", "it must be a whole number."),
        ("speculate = 1", "it must be true or false."),
        ("target = 3", "it must be text."),
        ("drafter = false", "it must be text."),
        ('policy = "bold"', "policy = 'bold' is unknown"),
        ("caps = 3", "caps in c.toml = 3 is invalid: it must be a table."),
        ('[caps]\ncomment = "3"', "caps: comment = '3' is invalid: use a whole number of tokens from 0 to 999."),
        ("[caps.python]\nprose = 3", "'python.prose' is not a context or language.context"),
        ('dtype = "float8"', "dtype = 'float8' is unknown: choose one of float32, bfloat16, float16, native."),
    ],
)
def test_configuration_files(toml: str, words: str, command: Command) -> None:
    Path("c.toml").write_text(toml)
    command("complete", PLACE, "--config", "c.toml").check_mistake(words)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CODESPEC_THREADS", "x", "CODESPEC_THREADS = 'x' is invalid: it must be a whole number."),
        ("CODESPEC_THREADS", "", "CODESPEC_THREADS = '' is invalid: it must be a whole number."),
        ("CODESPEC_THREADS", "-1", "threads = -1 is too small"),
        ("CODESPEC_SPECULATE", "maybe", "CODESPEC_SPECULATE = 'maybe' is invalid: it must be true or false."),
        ("CODESPEC_MODE", "slow", "mode = 'slow' is unknown: choose one of exact, fast."),
        ("CODESPEC_THREDS", "2", "Unknown setting CODESPEC_THREDS: the closest is threads."),
    ],
)
def test_variables(name: str, value: str, words: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    command("complete", PLACE).check_mistake(words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-tokens", "0"], "--max-tokens 0 would generate nothing: choose 1 or more."),
        (["--max-tokens", "60", "--context", "64"], "max_tokens must be between 0 and 48 for a context of 64."),
        (["--temperature", "nan"], "temperature must be between 0 and 100."),
    ],
)
def test_what_only_the_model_can_judge(words: list[str], sentence: str, light_models: Models, command: Command) -> None:
    command("complete", "a.py:2:2", *light_models.flags, *words).check_mistake(sentence)


def test_cuda_without_cuda(models: Models, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command("complete", PLACE, *models.flags, "--device", "cuda:1").check_mistake(
        "There is no CUDA device: use --device cpu."
    )
