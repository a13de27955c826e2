"""Trains the starter pair: two shapes, two tokenizers, one order. Knows no insides of the parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from codespec.errors import TrainingError
from codespec.training.arithmetic import faster_dtype
from codespec.training.card import model_card
from codespec.training.checkpoint import load_checkpoint
from codespec.training.corpus import CORPUS_NAME, MANIFEST_NAME, Document, read_documents
from codespec.training.evaluate import held_out_excerpts
from codespec.training.export import export_model
from codespec.training.lessons import LESSONS_NAME, Lesson
from codespec.training.llama import LlamaShape
from codespec.training.pretrain import Recipe, Run, pretrain, start_run
from codespec.training.schedule import Budget
from codespec.training.sources import held_out_files
from codespec.training.vocabularies import (
    load_tokenizer,
    sample_texts,
    save_tokenizer,
    train_drafter_tokenizer,
    train_target_tokenizer,
)

SHAPES = {
    "target": LlamaShape(vocab_size=6144, hidden_size=256, layers=5, query_heads=4, kv_heads=2, mlp_size=704),
    "drafter": LlamaShape(vocab_size=3072, hidden_size=128, layers=3, query_heads=2, kv_heads=1, mlp_size=352),
}
# Something to develop on is wanted early, so both models get a few minutes before either is finished.
PREVIEW_MINUTES = {"drafter": 3.0, "target": 5.0}
TOKENIZER_SAMPLE_CHARS = 30_000_000
HELD_OUT_EXCERPTS = 40


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a training run keeps its files."""

    folder: Path

    @property
    def corpus(self) -> Path:
        """The compressed corpus."""
        return self.folder / CORPUS_NAME

    @property
    def manifest(self) -> Path:
        """What the corpus was made of."""
        return self.folder / MANIFEST_NAME

    @property
    def lessons(self) -> Path:
        """What the target wrote for the drafter to learn."""
        return self.folder / LESSONS_NAME

    def tokenizer(self, name: str) -> Path:
        """A model's tokenizer folder."""
        return self.folder / "tokenizers" / name

    def checkpoint(self, name: str) -> Path:
        """A model's checkpoint."""
        return self.folder / "checkpoints" / f"{name}.ckpt"

    def preview(self, name: str) -> Path:
        """A model's preliminary weights."""
        return self.folder / "preview" / name


def train_tokenizers(place: Workplace) -> None:
    """Train and save both tokenizers on a sample of the corpus."""
    texts = sample_texts(read_documents(place.corpus), TOKENIZER_SAMPLE_CHARS)
    longest = {name: shape.max_positions for name, shape in SHAPES.items()}
    target = train_target_tokenizer(texts, SHAPES["target"].vocab_size)
    save_tokenizer(target, place.tokenizer("target"), longest["target"])
    drafter = train_drafter_tokenizer(texts, SHAPES["drafter"].vocab_size)
    save_tokenizer(drafter, place.tokenizer("drafter"), longest["drafter"])


def read_manifest(place: Workplace) -> dict[str, Any]:
    """The corpus manifest. Raises TrainingError if it is missing or damaged."""
    try:
        manifest: dict[str, Any] = json.loads(place.manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"The manifest {place.manifest} is missing; run `codespec train corpus` again.") from error
    return manifest


def export_run(run: Run, tokenizer: Tokenizer, folder: Path, manifest: dict[str, Any]) -> None:
    """Write a run's present weights and card as a Hugging Face folder."""
    recipe, at = run.recipe, run.position
    facts = asdict(recipe) | recipe.shape.to_dict()
    facts |= {
        "parameters": sum(p.numel() for p in run.model.parameters()) / 1e6,
        "tokens": at.tokens / 1e6,
        "minutes": at.seconds / 60,
        "lessons": at.lessons,
        "begun": f"from the weights of {at.start}" if at.start else "from scratch",
        "long_share": 1 - recipe.long_from,
        "bits": f"{at.history[-1]['bits_per_byte']:.3f}" if at.history else "unmeasured",
    }
    export_model(run.model, tokenizer, folder, model_card(facts, manifest))


def make_recipe(name: str, budget: Budget, *, seed: int, device: str, rate: float = 1.0) -> Recipe:
    """The starter pair's recipe for `name` ("target" or "drafter"), with `rate` times its learning rates, in the number
    format that is faster here.
    """
    recipe = Recipe(name, SHAPES[name], budget, seed=seed, device=device, dtype=faster_dtype(device))
    return replace(recipe, matrix_rate=rate * recipe.matrix_rate, other_rate=rate * recipe.other_rate)


def train_one(
    recipe: Recipe,
    place: Workplace,
    *,
    documents: list[Document],
    resume: bool,
    until: float = 1.0,
    out: Path | None = None,
    start: Path | None = None,
    lessons: Sequence[Lesson] = (),
) -> bool:
    """Train one model of the pair up to `until` of its budget; a preview at every checkpoint, `out` last.

    `start` is the folder of a model to begin with, whose tokenizer is taken. Returns False if a signal came first.
    """
    name = recipe.name
    tokenizer, manifest = load_tokenizer(start or place.tokenizer(name)), read_manifest(place)
    run, arrived = pretrain(
        recipe,
        documents,
        tokenizer,
        place.checkpoint(name),
        resume=resume,
        start=start,
        until=until,
        held_out=held_out_excerpts(held_out_files(), HELD_OUT_EXCERPTS),
        lessons=lessons,
        on_checkpoint=lambda run: export_run(run, tokenizer, place.preview(name), manifest),
    )
    if arrived and out is not None:
        export_run(run, tokenizer, out / name, manifest)
    return arrived


def train_pair(place: Workplace, recipes: dict[str, Recipe], out: Path, *, resume: bool) -> bool:
    """Train both models: first a preview of each, then the drafter to its end, then the target.

    Returns False if a signal stopped it; a later call with `resume` goes on.
    """
    documents = read_documents(place.corpus)
    begun = {name: resume and place.checkpoint(name).is_file() for name in recipes}
    for name in ("drafter", "target"):
        share = min(1.0, PREVIEW_MINUTES[name] / max(recipes[name].budget.minutes, 1e-9))
        if not train_one(recipes[name], place, documents=documents, resume=begun[name], until=share):
            return False
    (place.folder / "preview" / "READY").touch()
    return all(
        train_one(recipes[name], place, documents=documents, resume=True, out=out) for name in ("drafter", "target")
    )


def export_checkpoint(recipe: Recipe, place: Workplace, out: Path, start: Path | None = None) -> None:
    """Write the weights of a model's checkpoint as a Hugging Face folder; `start` is what it was begun with."""
    load_checkpoint(place.checkpoint(recipe.name))  # what is missing then is said first
    tokenizer = load_tokenizer(start or place.tokenizer(recipe.name))
    run = start_run(recipe, tokenizer, place.checkpoint(recipe.name))
    export_run(run, tokenizer, out / recipe.name, read_manifest(place))
