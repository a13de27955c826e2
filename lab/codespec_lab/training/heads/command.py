"""`codespec train head`: extract a target's features from texts, train a head on them, and export it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from codespec.errors import TrainingError
from codespec.models.heads.checkpoint import save_head
from codespec.models.heads.config import usual_layers
from codespec.models.heads.host import Host
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec_lab.corpus.documents import read_documents, write_atomically
from codespec_lab.training.distill.texts import DistillationExample, read_examples
from codespec_lab.training.heads.card import head_card
from codespec_lab.training.heads.corpus_texts import corpus_texts
from codespec_lab.training.heads.features import FeatureStore, collect_features
from codespec_lab.training.heads.run import HeadRecipe, HeadRun, choose_vocabulary, head_shape, train_head
from codespec_lab.training.pair import WorkFolder
from codespec_lab.training.run import Budget, catching_signals, faster_dtype


def run_head(args: argparse.Namespace, work: WorkFolder) -> bool:
    """Train a head from the parsed flags and export it at every checkpoint; return False if a signal stopped it."""
    torch.set_num_threads(args.threads)
    checkpoint = args.out.with_name(args.out.name + ".ckpt")
    if not args.resume and (checkpoint.exists() or args.out.exists()):
        raise TrainingError(f"{args.out} is there already: continue it with --resume, or choose another --out.")
    examples = _texts(args, work)
    dtype = faster_dtype(args.device)
    model = load_model(args.target, device=args.device, dtype=dtype, exact=False)
    host = Host.of(model)
    store = _collect(args, work, model, host, examples)
    if store is None:
        return False
    config = head_shape(
        args.kind, host, usual_layers(host.layers), draft_vocab=args.draft_vocab, block=args.block, deep=args.layers
    )
    budget = Budget(minutes=args.minutes, steps=args.steps)
    recipe = HeadRecipe(budget, seed=args.seed, dtype=dtype)
    run = HeadRun(config, recipe, host, choose_vocabulary(store, host, config.draft_vocab, model.device), store)
    name = args.target if "/" not in args.target else Path(args.target).name
    return train_head(
        run, checkpoint, resume=args.resume, on_checkpoint=lambda run: _export(args.out, run, name, len(examples))
    )


def _texts(args: argparse.Namespace, work: WorkFolder) -> list[DistillationExample]:
    """Return the target's own texts, if named or found, and `args.read` corpus texts, shuffled by the seed.

    Texts of one file stay adjacent. The last texts are held out, so at most one file is both trained on and held out.
    """
    file = args.examples or work.find_distill_data()
    written = read_examples(file) if args.examples or not args.read or file.is_file() else []
    read = corpus_texts(read_documents(work.corpus), args.read, seed=args.seed) if args.read else []
    texts = [*written, *read]
    paths = sorted({text.path for text in texts})
    place = dict(zip(paths, np.random.default_rng([args.seed, 8]).permutation(len(paths)).tolist(), strict=True))
    return sorted(texts, key=lambda text: place[text.path])


def _collect(
    args: argparse.Namespace,
    work: WorkFolder,
    model: LanguageModel,
    host: Host,
    examples: list[DistillationExample],
) -> FeatureStore | None:
    """Return the target's features for the examples, or None if a signal stopped the extraction."""
    with catching_signals() as interruption:
        store = collect_features(
            model,
            usual_layers(host.layers),
            examples,
            work.folder / "features",
            stop=lambda: interruption.requested,
        )
    return None if interruption.requested else store


def _export(folder: Path, run: HeadRun, name: str, texts: int) -> None:
    files: dict[str, Any] = save_head(run.config, run.head, run.vocabulary.ids, name=name)
    files["README.md"] = head_card(run, name, texts).encode()
    for file, data in files.items():
        write_atomically(folder / file, data)
