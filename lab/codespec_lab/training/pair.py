"""Train the models that ship: their shapes and recipes, their files, and the order of the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from codespec.errors import TrainingError
from codespec_lab.corpus.documents import CORPUS_NAME, HELD_OUT_NAME, MANIFEST_NAME, Document, read_documents
from codespec_lab.corpus.standard_library import held_out_files
from codespec_lab.training.distill.texts import DistillationExample
from codespec_lab.training.export import export_model, model_card
from codespec_lab.training.llama import LlamaShape
from codespec_lab.training.pretrain import PretrainRun, Recipe, held_out_excerpts, pretrain
from codespec_lab.training.run import Budget, faster_dtype
from codespec_lab.training.tokenizer_training import (
    keep_most_used,
    load_tokenizer,
    sample_texts,
    save_tokenizer,
    train_drafter_tokenizer,
    train_target_tokenizer,
)

SHAPES = {
    "target": LlamaShape(vocab_size=6144, hidden_size=256, layers=5, query_heads=4, kv_heads=2, mlp_size=704),
    "drafter": LlamaShape(vocab_size=3072, hidden_size=128, layers=3, query_heads=2, kv_heads=1, mlp_size=352),
    "qwen-drafter": LlamaShape(vocab_size=12288, hidden_size=128, layers=3, query_heads=2, kv_heads=1, mlp_size=352),
}
TOKENIZER_SAMPLE_CHARS = 30_000_000
CUT_SAMPLE_CHARS = 16_000_000
HELD_OUT_EXCERPTS = 40


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Paths of a training run's files, below `folder`."""

    folder: Path

    @property
    def corpus(self) -> Path:
        """The compressed corpus."""
        return self.folder / CORPUS_NAME

    @property
    def held_out(self) -> Path:
        """The held-out projects."""
        return self.folder / HELD_OUT_NAME

    @property
    def manifest(self) -> Path:
        """The manifest of the corpus."""
        return self.folder / MANIFEST_NAME

    @property
    def distill_data(self) -> Path:
        """The target's texts for the drafter."""
        return self.folder / "distill_data.jsonl.gz"

    def tokenizer(self, name: str) -> Path:
        """Return a model's tokenizer folder."""
        return self.folder / "tokenizers" / name

    def checkpoint(self, name: str) -> Path:
        """Return a model's checkpoint file."""
        return self.folder / "checkpoints" / f"{name}.ckpt"

    def preview(self, name: str) -> Path:
        """Return the folder of a model's preliminary weights."""
        return self.folder / "preview" / name

    def read_manifest(self) -> dict[str, Any]:
        """Return the corpus manifest. Raise TrainingError if it is missing or damaged."""
        try:
            manifest: dict[str, Any] = json.loads(self.manifest.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"The manifest {self.manifest} is missing or damaged; run `codespec train corpus` again."
            ) from error
        return manifest


def train_tokenizers(work: WorkFolder) -> None:
    """Train and save both tokenizers on a sample of the corpus."""
    texts = sample_texts(read_documents(work.corpus), TOKENIZER_SAMPLE_CHARS)
    for name, train in (("target", train_target_tokenizer), ("drafter", train_drafter_tokenizer)):
        shape = SHAPES[name]
        save_tokenizer(train(texts, shape.vocab_size), work.tokenizer(name), shape.max_positions)


def cut_tokenizer(work: WorkFolder, folder: Path) -> None:
    """Save the qwen-drafter's tokenizer: the tokens of the model in `folder` that the corpus uses most."""
    shape = SHAPES["qwen-drafter"]
    texts = sample_texts(read_documents(work.corpus), CUT_SAMPLE_CHARS)
    cut = keep_most_used(load_tokenizer(folder), texts, shape.vocab_size)
    save_tokenizer(cut, work.tokenizer("qwen-drafter"), shape.max_positions)


def export_run(run: PretrainRun, tokenizer: Tokenizer, folder: Path, manifest: dict[str, Any]) -> None:
    """Write a run's current weights and card as a Hugging Face folder."""
    recipe, state = run.recipe, run.state
    facts = asdict(recipe) | recipe.shape.to_dict()
    facts |= {
        "parameters": sum(p.numel() for p in run.model.parameters()) / 1e6,
        "tokens": state.tokens / 1e6,
        "minutes": state.seconds / 60,
        "distilled": state.distilled,
        "begun": f"from the weights of {state.start}" if state.start else "from scratch",
        "long_share": 1 - recipe.long_from,
        "bits": f"{state.history[-1]['bits_per_byte']:.3f}" if state.history else "unmeasured",
    }
    export_model(run.model, tokenizer, folder, model_card(facts, manifest))


def make_recipe(name: str, budget: Budget, *, seed: int, device: str, rate: float = 1.0) -> Recipe:
    """Return a model's recipe, with `rate` times its learning rates and the faster dtype."""
    recipe = Recipe(name, SHAPES[name], budget, seed=seed, device=device, dtype=faster_dtype(device))
    return replace(recipe, matrix_rate=rate * recipe.matrix_rate, other_rate=rate * recipe.other_rate)


def train_one(
    recipe: Recipe,
    work: WorkFolder,
    *,
    documents: list[Document],
    resume: bool,
    out: Path,
    start: Path | None = None,
    layers: Path | None = None,
    distilled: Sequence[DistillationExample] = (),
) -> bool:
    """Train one model. Export a preview at every checkpoint, and to `out` at the end.

    `start` is the folder of a model to begin from, including its tokenizer. `layers` is the folder of a model with
    other tokens; only its layers are taken. Return False if a signal stopped the training.
    """
    name = recipe.name
    tokenizer, manifest = load_tokenizer(start or work.tokenizer(name)), work.read_manifest()
    run, finished = pretrain(
        recipe,
        documents,
        tokenizer,
        work.checkpoint(name),
        resume=resume,
        start=start,
        layers=layers,
        held_out=held_out_excerpts(held_out_files(), HELD_OUT_EXCERPTS),
        distilled=distilled,
        on_checkpoint=lambda run: export_run(run, tokenizer, work.preview(name), manifest),
    )
    if finished:
        export_run(run, tokenizer, out / name, manifest)
    return finished
