"""`codespec train head`: extract a target's features from texts, train a head on them, and export it with its card.

The texts are the target's own, or cut from the corpus. A head learns the target's distribution at each token, so the
target only has to read a text: one forward covers hundreds of tokens, whereas generation needs one forward per token.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
from codespec_lab.corpus.documents import Document, read_documents, write_atomically
from codespec_lab.training.distill.places import draw
from codespec_lab.training.distill.texts import DistillationExample, read_examples
from codespec_lab.training.heads.features import FeatureStore, collect_features
from codespec_lab.training.heads.run import HeadRecipe, HeadRun, choose_vocabulary, head_shape, train_head
from codespec_lab.training.pair import WorkFolder
from codespec_lab.training.run import Budget, catching_signals, faster_dtype

_CARD = """---
language: code
library_name: safetensors
base_model: {target}
tags: [code, speculative-decoding, {kind}, codespec]
---
# {title} head for {target}

Guesses the next tokens of {target} from its hidden states; {target} checks every guess, so no text depends on this
head. Made by `codespec train head`. It works with the target whose fingerprint is in config.json and with no other.

| | |
|---|---|
| shape | {layers} layer(s), width {width}, {heads} query and {kv_heads} KV heads of {head_size}, MLP {mlp} |
| reads | the outputs of the target's layers {read} (from 0) |
| vocabulary | the {vocabulary:,} tokens that the target writes most often; token vectors and output rows are its own |
| parameters | {parameters:.1f} M, bfloat16 |
| trained on | {texts:,} texts, {tokens:.2f} M tokens in {steps:,} steps, {minutes:.0f} minutes |
| recipe | {recipe}; Muon ({matrix_rate}) for matrices, AdamW ({other_rate}) for the rest; {dtype}; seed {seed} |
| held-out | {scores} |

**Data.** Prompts are positions in permissively licensed source; the head learned the target's texts and probabilities
there.
"""
BEFORE, SUFFIX, TEXT = 500, 300, 1500  # characters of a gap's prefix, suffix and text; together about 800 tokens
START = 40  # characters before the beginning of a plain text
LEAST = 400  # minimum characters of a text
FIM_SHARE = 0.5


def run_head(args: argparse.Namespace, work: WorkFolder) -> bool:
    """Train a head from the parsed flags and export it at every checkpoint; return False if a signal stopped it."""
    torch.set_num_threads(args.threads)
    checkpoint = args.out.with_name(args.out.name + ".ckpt")
    if not args.resume and (checkpoint.exists() or args.out.exists()):
        raise TrainingError(f"{args.out} already exists: continue it with --resume, or choose another --out.")
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
    file = args.examples or work.distill_data
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


def head_card(run: HeadRun, target: str, texts: int) -> str:
    """Return the card as Markdown; `texts` is the number of training texts."""
    config, recipe, state = run.config, run.recipe, run.state
    eagle = config.kind == "eagle3"
    how = f"unrolled over {recipe.unroll} draft steps" if eagle else f"blocks of {config.block}"
    scores = "unmeasured"
    if state.history:
        last = state.history[-1]
        scores = f"{last['right_a_draft']:.2f} tokens right a draft of {recipe.unroll if eagle else config.block - 1}"
    return _CARD.format(
        target=target,
        kind=config.kind,
        title="EAGLE-3" if eagle else "DFlash",
        layers=config.draft_layers,
        width=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        mlp=config.mlp_size,
        read=", ".join(map(str, config.layers)),
        vocabulary=config.draft_vocab,
        parameters=sum(p.numel() for p in run.head.parameters()) / 1e6,
        texts=texts,
        tokens=state.tokens / 1e6,
        steps=state.step,
        minutes=state.seconds / 60,
        recipe=how,
        matrix_rate=recipe.matrix_rate,
        other_rate=recipe.other_rate,
        dtype=recipe.dtype,
        seed=recipe.seed,
        scores=scores,
    )


def corpus_texts(documents: Sequence[Document], count: int, *, seed: int) -> list[DistillationExample]:
    """Return `count` long texts, half with a suffix to fill in before and half plain continuations.

    Languages are drawn by the square root of their file counts, so rare ones are included. Raise TrainingError if no
    document is long enough.
    """
    long = [document for document in documents if len(document.text) >= START + LEAST]
    if not long:
        raise TrainingError("The corpus has no file long enough to learn from: collect more packages.")
    rng = np.random.default_rng([seed, 7])
    return [_cut(document, rng) for document in draw(long, [document.language for document in long], count, rng)]


def _cut(document: Document, rng: np.random.Generator) -> DistillationExample:
    """Cut a text from a document, at a line start or within a line."""
    text = document.text
    fills_in = bool(rng.random() < FIM_SHARE)
    before = BEFORE if fills_in else START
    first = int(rng.integers(START, max(START + 1, len(text) - TEXT - SUFFIX)))
    if rng.random() < 0.5:
        first = max(START, text.rfind("\n", 0, first) + 1)
    last = min(first + TEXT + (0 if fills_in else BEFORE + SUFFIX), len(text))
    suffix = text[last : last + SUFFIX] if fills_in else ""
    return DistillationExample(
        document.path, text[max(0, first - before) : first], text[first:last], suffix, ended=False
    )
