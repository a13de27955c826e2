"""`codespec train head`: from texts of a target to a head's folder, resumed, refused, and learning."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from codespec.config import STARTER
from codespec.corpus.documents import Document
from codespec.errors import ModelError, TrainingError
from codespec.models.heads.checkpoint import load_head
from codespec.models.heads.config import KINDS
from codespec.models.heads.host import Host
from codespec.models.loader import load_model
from codespec.training.distill_data import DistillationExample, save_examples
from codespec.training.heads.run import HeadRun
from tests.training.test_command import run


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory, documents: list[Document]) -> Path:
    """A few texts, as if the target had written them."""
    made = []
    for number, document in enumerate(documents * 2):
        at = 400 + 90 * number
        piece = document.text[at - 300 : at + 300]
        ending = piece[420:] if number % 2 else ""
        made.append(DistillationExample(f"{number}.py", piece[:300], piece[300:420], ending, ended=number % 3 == 0))
    path = tmp_path_factory.mktemp("examples") / "texts.jsonl.gz"
    save_examples(path, made)
    return path


def train(tmp_path: Path, examples: Path, kind: str, *more: str, out: str = "head") -> int:
    words = ("--draft-vocab", "512", "--block", "4", "--threads", "1", *more)
    given = ("--kind", kind, "--examples", str(examples), "--out", str(tmp_path / out), *words)
    return run("--work", str(tmp_path / "work"), "head", *given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_written_that_its_target_loads(kind: str, tmp_path: Path, examples: Path) -> None:
    assert train(tmp_path, examples, kind, "--steps", "3") == 0
    folder = tmp_path / "head"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["codespec"]["target"]["name"] == "target" and config["draft_vocab_size"] == 512
    weights = load_file(folder / "model.safetensors")
    assert not [name for name in weights if "lm_head" in name or "embed" in name], "those are the target's own"
    assert f"for {config['codespec']['target']['name']}" in (folder / "README.md").read_text("utf-8")
    model = load_model(str(STARTER / "target"), exact=False)
    host = Host.of(model)
    head = load_head(folder, host, dtype=torch.float32, device=torch.device("cpu"))
    assert head.config.kind == kind and len(head.ids) == 512 and bool((head.ids.diff() > 0).all())
    assert torch.equal(head.network.lm_head.weight, host.output_rows(head.ids).float())  # type: ignore[arg-type]
    other = Host.of(load_model(str(STARTER / "drafter"), exact=False))
    with pytest.raises(ModelError, match="was trained for another target"):
        load_head(folder, other, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_repeats_the_whole_one(kind: str, tmp_path: Path, examples: Path) -> None:
    assert train(tmp_path, examples, kind, "--steps", "4", out="whole") == 0
    with pytest.raises(TrainingError, match="is there already"):
        train(tmp_path, examples, kind, "--steps", "4", out="whole")
    with pytest.MonkeyPatch.context() as patch:
        step = HeadRun.step

        def stop_after_two(one: HeadRun) -> float:
            loss = step(one)
            if one.state.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return loss

        patch.setattr(HeadRun, "step", stop_after_two)
        assert train(tmp_path, examples, kind, "--steps", "4", out="part") == 3
        assert (tmp_path / "part.ckpt").is_file()
    assert train(tmp_path, examples, kind, "--steps", "4", "--resume", out="part") == 0
    whole, part = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "part"))
    assert whole.keys() == part.keys() and all(torch.equal(whole[name], part[name]) for name in whole)
    with pytest.raises(TrainingError, match="another target or another kind"):
        train(tmp_path, examples, "dflash" if kind == "eagle3" else "eagle3", "--steps", "9", "--resume", out="part")
