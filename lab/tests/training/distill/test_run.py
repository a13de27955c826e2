"""`codespec distill` from flags to a folder, with the starter pair: results, repeatability, resuming and errors."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from codespec_lab.corpus.standard_library import held_out_files
from codespec_lab.training.distill import acceptance, loop, places, stages
from codespec_lab.training.distill.acceptance import Comparison
from codespec_lab.training.distill.run import distill
from codespec_lab.training.distill.stages import general_code, read_code, split
from codespec_lab.training.distill.student import Student
from codespec_lab.training.distill.work import Settings
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from codespec.api.config import SHIPPED
from codespec.api.types import CompletionRequest
from codespec.engine.engine import Engine
from codespec.errors import CodespecError, ModelError, PairError, TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
# Few positions, short texts and small steps, by module; the measured gains are chance, so no gain is required.
SMALL = {
    stages: {"HERE": 3, "ELSEWHERE": 2, "PART": 16, "READ_TIMES": 2},
    places: {"MAX_TOKENS": 24},
    loop: {"TOKENS": 1024, "WARM_UP": 2},
}
# For a separate process: the same small numbers, and a checkpoint after every step.
SCRIPT = """
import sys
from codespec_lab.training.distill import loop
from codespec_lab.training.distill.run import distill
from codespec_lab.training.distill.work import Settings
loop.CHECKPOINT_SECONDS = 0.0
for module, name, value in {small!r}: setattr(sys.modules[module], name, value)
distill({settings!r})
"""
SIGNS = ("written-0000.jsonl.gz", "read-0000.safetensors", "train.ckpt")  # of a run's progress


@pytest.fixture(scope="module", autouse=True)
def one_library() -> Iterator[None]:
    """Read the standard library once for all runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codespec_lab.training.distill.run.general_code", cache(general_code))
        yield


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine files of the standard library."""
    folder = tmp_path_factory.mktemp("code")
    for name, path in held_out_files()[:9]:
        (folder / name.replace("/", "_")).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    for module, values in SMALL.items():
        for name, value in values.items():
            patch.setattr(module, name, value)
    patch.setattr(acceptance, "MIN_GAIN", 0.0)
    patch.setattr(acceptance, "MAX_LOSS", 1.0)
    patch.setattr(loop, "MIN_KEPT", 0.0)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter drafter with noise in its weights, so that a few steps make it better."""
    folder = tmp_path_factory.mktemp("pair") / "spoiled"
    shutil.copytree(SHIPPED / "drafter", folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    for name, value in weights.items():
        if name.endswith(("down_proj.weight", "o_proj.weight")):
            noise = torch.randn(value.shape, generator=generator) * value.float().std()
            weights[name] = (value.float() + noise).to(value.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def settings(code: Path, out: Path, drafter: Path = SHIPPED / "drafter", **change: object) -> Settings:
    one = Settings(
        target=str(SHIPPED / "target"),
        drafter=str(drafter),
        code=(str(code),),
        out=str(out),
        places=10,
        steps=8,
        rate=4e-3,
        threads=1,
        minutes=100.0,
    )
    return replace(one, **change)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def distilled(code: Path, spoiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "drafter"
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        assert distill(settings(code, out, spoiled)).folder == out
    return out


def test_the_result_drafts_and_has_its_card(distilled: Path) -> None:
    AutoModelForCausalLM.from_pretrained(distilled)
    assert AutoTokenizer.from_pretrained(distilled).vocab_size
    engine = Engine.load(target=str(SHIPPED / "target"), drafter=str(distilled), policy="fixed:4", warmup=0)
    (done,) = engine.complete([CompletionRequest(prefix="import os\n\ndef read(path):\n    ", max_tokens=24)])
    assert done.stats.drafted > 0
    text = (distilled / "README.md").read_text(encoding="utf-8")
    assert "| held-out files of the code (3 places) |" in text and "8 learned from" not in text
    assert "license:" in text and "--places 10" in text and "seed 0" in text and "text loss and forward KL" in text
    assert not distilled.with_name("drafter.work").exists()
    starter, new = ((f / "model.safetensors").read_bytes() for f in (SHIPPED / "drafter", distilled))
    assert len(starter) == pytest.approx(len(new), rel=0.01) and starter != new


def test_the_same_seed_gives_the_same_bytes(code: Path, spoiled: Path, distilled: Path, tmp_path: Path) -> None:
    out = tmp_path / "drafter"
    distill(settings(code, out, spoiled))
    assert contents(out) == contents(distilled)


@pytest.fixture(scope="module")
def killed(code: Path, spoiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A run in a process of its own: beside its output is, by sign, the work folder that a kill leaves at that time.

    The process is stopped for each copy, so nothing is written meanwhile, and killed after the last.
    """
    folder = tmp_path_factory.mktemp("killed")
    one = settings(code, folder / "drafter", spoiled)
    work = folder / "drafter.work"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    small = [(module.__name__, *item) for module, values in SMALL.items() for item in values.items()]
    script = SCRIPT.format(small=small, settings=one)
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL) as process:
        for sign in SIGNS:
            while not (work / sign).exists() and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), "the run had ended"
            shutil.copytree(work, folder / sign)
            process.send_signal(signal.SIGCONT)
        process.kill()
    assert not Path(one.out).exists(), "killed during the run"
    shutil.rmtree(work)
    return one


@pytest.mark.parametrize("sign", SIGNS)
def test_a_killed_run_goes_on_to_the_same_bytes(sign: str, killed: Settings, distilled: Path) -> None:
    one, out = killed, Path(killed.out)
    (out.parent / sign).rename(out.with_name("drafter.work"))
    with pytest.raises(TrainingError, match=r"has not ended: continue it with --resume"):
        distill(one)
    with pytest.raises(TrainingError, match=r"another --steps: give the same settings"):
        distill(replace(one, steps=13), resume=True)
    distill(one, resume=True)
    assert contents(out) == contents(distilled)
    shutil.rmtree(out)


def test_lora_and_a_round_of_its_own_texts(
    code: Path, spoiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespec_lab.training.distill.run.OWN", 6)
    out = tmp_path / "drafter"
    outcome = distill(settings(code, out, spoiled, method="lora", rounds=1, plain=True, rate=2e-2))
    assert outcome.folder == out or outcome.reason
    if outcome.folder:
        assert "LoRA, merged" in (out / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("lora", [False, True])
def test_an_export_is_the_whole_drafter_as_it_was_trained(lora: bool, tmp_path: Path) -> None:
    student = Student(str(SHIPPED / "drafter"), seed=0, lora=lora)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in student.trained.values():
            value += 0.01 * torch.randn_like(value)
    student.export(tmp_path / "new")
    assert {*contents(tmp_path / "new")} == {*contents(SHIPPED / "drafter")} - {"README.md"}, "and has no adapter"
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype=torch.float32)
    tokens = torch.arange(40)[None] + 300
    with torch.no_grad():
        wanted, before = student.logits(tokens), Student(str(SHIPPED / "drafter"), seed=0).logits(tokens)
        assert (found(tokens).logits - wanted).abs().max() < 0.2 < (before - wanted).abs().max(), "rounded to bfloat16"
    assert len(student.trained) == (2 * 7 * 3 if lora else 29)


def test_a_new_drafter_begins_with_nothing(code: Path, tmp_path: Path) -> None:
    outcome = distill(settings(code, tmp_path / "new", Path("new:1M")))
    assert outcome.found is None or outcome.found.here_before is None
    assert outcome.folder is None or "random weights (new:1M)" in (outcome.folder / "README.md").read_text()


def test_no_better_drafter_keeps_the_old_one(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from codespec.cli import main

    monkeypatch.setattr(acceptance, "MIN_GAIN", 9.0)
    flags = ["--places", "10", "--steps", "4", "--threads", "1", "--minutes", "100"]
    pair = ["--target", str(SHIPPED / "target"), "--drafter", str(SHIPPED / "drafter")]
    assert main(["distill", *pair, "--code", str(code), "--out", str(tmp_path / "new"), *flags]) == 0
    assert "Keep the old one: " in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Comparison(1.0, 1.2, 1.0, 0.98), ""),
        (Comparison(None, 0.1, None, 0.1), ""),
        (Comparison(1.0, 1.0, 1.0, 1.0), "1.000 tokens accepted a round on held-out files, 1.000 before"),
        (Comparison(1.0, 1.2, 1.0, 0.9), "0.900 tokens accepted a round elsewhere, 1.000 before"),
    ],
)
def test_better_is_more_here_and_hardly_less_elsewhere(
    found: Comparison, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert found.reason == reason


def write(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def {path.stem}(x):\n    return x + 1\n" + f"# {name} says what it does here\n" * 3 +
                        "".join(f"value_{n} = {path.stem}({n})\n" for n in range(20)), encoding="utf-8")  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"code": ("{empty}",)}, TrainingError, r"empty holds no source code to learn from: name a folder"),
        ({"code": ("{prose}",)}, TrainingError, r"prose holds no source code to learn from: name a folder"),
        ({"code": ("{missing}",)}, TrainingError, r"There is no folder .*missing: name a folder"),
        ({"code": ("{single}",)}, TrainingError, r"a single file, and one must be held out to measure: name a folder"),
        ({"keep": ("{empty}",)}, TrainingError, r"empty holds no source code"),
        ({"out": "{code}/new"}, TrainingError, r"lies inside the code of .*: choose an --out beside it"),
        ({"out": "{code}"}, TrainingError, r"exists already, and nothing is overwritten: choose another --out"),
        ({"drafter": "new:7M"}, ModelError, r"new:7M is no drafter: a new one has the size 1M or 5M"),
        ({"drafter": str(SHIPPED / "target")}, PairError, r"as large as .*: choose a smaller --drafter"),
        ({"drafter": "{empty}"}, CodespecError, r"contains no tokenizer.json: specify a complete"),
        ({"target": "{missing}"}, ModelError, r"There is no model folder"),
    ],
)
def test_what_cannot_run_says_so_in_one_sentence(
    change: dict[str, object], error: type[CodespecError], words: str, code: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "prose").mkdir()
    (tmp_path / "prose" / "words.txt").write_text("words\n" * 400)
    write(tmp_path / "single", "only.py")
    names = {name: str(tmp_path / name) for name in ("empty", "prose", "missing", "single")} | {"code": str(code)}

    def filled(value: object) -> object:
        return tuple(map(filled, value)) if isinstance(value, tuple) else str(value).format(**names)

    one = replace(settings(code, tmp_path / "new"), **{key: filled(value) for key, value in change.items()})
    with pytest.raises(error, match=words) as raised:
        distill(one)
    assert "\n" not in str(raised.value)


def test_a_target_without_fill_in_the_middle_asks_for_plain(code: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    for file in (SHIPPED / "target").iterdir():
        text = file.read_bytes()
        (target / file.name).write_bytes(
            text.replace(b"<|fim_", b"<|gap_") if file.name.startswith("tokenizer") else text
        )
    with pytest.raises(PairError, match=r"cannot fill in .* add --plain to distill on continuations alone"):
        distill(settings(code, tmp_path / "new", target=str(target)))
    assert not (tmp_path / "new.work").exists()


@pytest.mark.parametrize("file", ["run.json", "written-0000.jsonl.gz", "train.ckpt"])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on(
    file: str, code: Path, spoiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        replaced(source, target)

    one = settings(code, tmp_path / "drafter", spoiled, steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(TrainingError, match=r"cannot be written \(No space left on device\); free some space"):
            distill(one)
    if file == "run.json":
        assert not list(tmp_path.glob("**/*.*.part"))
        return
    distill(one, resume=True)
    assert not (tmp_path / "drafter.work").exists()


def test_files_are_held_out_by_rule_and_secrets_are_left(tmp_path: Path) -> None:
    write(tmp_path, *(f"part{n}/file_{n}.py" for n in range(16)), ".hidden/a.py", "node_modules/b.js", ".netrc")
    documents = read_code([tmp_path])
    assert len(documents) == 16
    found = split(documents)
    assert len(found.held_out) == 2 and not set(found.held_out) & set(found.learned)
    assert split(documents[::-1]) == found


def test_ignored_files_are_left_but_not_a_folder_that_is_named(tmp_path: Path) -> None:
    write(tmp_path, "own/a.py", "own/made.py", "own/secret/b.py", "vendor/c.py", "vendor/made.py")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("vendor/\nmade.py\n")
    (tmp_path / "own" / ".codespecignore").write_text("secret\n")

    def names(folder: Path) -> set[str]:
        return {document.path for document in read_code([folder])}

    assert names(tmp_path) == {"own/a.py"} and names(tmp_path / "own") == {"a.py"}
    assert names(tmp_path / "vendor") == {"c.py", "made.py"}
