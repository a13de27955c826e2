"""`codespec train adapt`: teach a causal model to fill in the middle and write a LoRA adapter with its card."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from codespec.errors import TrainingError
from codespec.files import read_json
from codespec.store.catalogue import find_entry
from codespec.store.conversions import SOURCE
from codespec_lab.corpus.documents import read_documents
from codespec_lab.training.adapt_samples import AdaptStream
from codespec_lab.training.export import data_facts
from codespec_lab.training.lora_model import LoraModel, read_adapter
from codespec_lab.training.pair import WorkFolder
from codespec_lab.training.run import Budget, RunState, faster_dtype, learning_rate_factor, load_checkpoint, train

HELD_OUT_ROWS = 48
LONGEST_STEP_SECONDS = 120.0  # a longer step was paused

_CARD = """---
language: code
library_name: peft
license: {licence}
base_model: {model}
tags: [code, fill-in-the-middle, codespec]
---
# {model} fills in the middle

A LoRA adapter (Hu et al. 2021, peft's layout) that teaches {model}{source}, a causal model without such tokens, to
write the text between a prefix and a suffix. Made by `codespec train adapt`; an adapted work of the model, under the
model's own licence ({licence}).

| | |
|---|---|
| adapter | rank {rank} on all linear layers and four token vectors, {parameters:.1f} M parameters, bfloat16 |
| taught on | {tokens:.2f} M tokens in {steps} steps, {minutes:.0f} minutes of working time{started} |
| recipe | {rows} rows of {length} tokens a step; AdamW, learning rate {rate} falling to nothing; {dtype}; seed {seed} |
| held-out | {scores} |

**Prompts.** Suffix-prefix-middle (four fifths of the samples) and prefix-suffix-middle:
`{prefix}{suffix}` suffix `{middle}` prefix middle `{end}`, and `{prefix}` prefix `{suffix}` suffix `{middle}` middle
`{end}`. The middle is the rest of a line, a whole line, or two to five lines. A twelfth of the samples is plain text.
The loss counts middles, their ends by half, and a prefix that comes after its suffix by a quarter.

**Data.** {size:.0f} MB of source in {packages} packages whose licence metadata is plainly permissive ({licences}); by
language: {languages}. Generated files, near-copies, tests and the held-out projects were removed.

**Not good for** the same uses as its model: correct programs, facts, long files, anything where a wrong answer
costs something.
"""


@dataclass(frozen=True, slots=True)
class AdaptRecipe:
    """Training settings: `rows` rows of `length` tokens per step.

    `rate` is the learning rate of the matrices; the sentinel vectors use `vector_factor` times it.
    """

    budget: Budget
    rate: float = 1.5e-3
    vector_factor: float = 3.0
    rows: int = 6
    length: int = 256
    warmup_steps: int = 15
    clip: float = 1.0
    checkpoint_seconds: float = 300.0


class AdaptRun:
    """One adapter in training."""

    def __init__(self, model: LoraModel, recipe: AdaptRecipe) -> None:
        self.model, self.recipe, self.state = model, recipe, RunState()
        groups = [{"params": model.matrices}, {"params": [model.vectors]}]
        self._optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0)

    @property
    def progress(self) -> float:
        """Share of the budget that is used."""
        return self.recipe.budget.progress(self.state.seconds, self.state.step)

    def step(self, stream: AdaptStream) -> float:
        """Make one update and return the loss in nats."""
        recipe, state = self.recipe, self.state
        batch = stream.batch(state.step * recipe.rows, recipe.rows, recipe.length)
        factor = learning_rate_factor(state.step, self.progress, warmup_steps=recipe.warmup_steps)
        for group, times in zip(self._optimizer.param_groups, (1.0, recipe.vector_factor), strict=True):
            group["lr"] = recipe.rate * factor * times
        loss = self.model.compute_loss(batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*self.model.matrices, self.model.vectors], recipe.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        state.step, state.tokens = state.step + 1, state.tokens + batch.ids.numel()
        return float(loss.detach())

    @torch.no_grad()
    def score(self, stream: AdaptStream) -> dict[str, float]:
        """Return nats per token of the middles in HELD_OUT_ROWS rows, and of the tokens that end them."""
        nats: dict[bool, list[float]] = {False: [], True: []}
        for first in range(0, HELD_OUT_ROWS, self.recipe.rows):
            result = self.model.compute_loss(stream.batch(first, self.recipe.rows, self.recipe.length))
            for value, label in zip(result.nats.tolist(), result.labels.tolist(), strict=True):
                nats[label == self.model.sentinels.end].append(value)
        means = {ends: sum(found) / max(1, len(found)) for ends, found in nats.items()}
        return {"middle": means[False], "end": means[True]}

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume, as tensors and plain values."""
        return {
            "identity": self.model.identity,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "position": asdict(self.state),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the result of `state_dict`. Raise TrainingError if the model, rank or sentinels differ."""
        if saved["identity"] != self.model.identity:
            raise TrainingError(
                "The checkpoint belongs to another model, rank or choice of sentinels: give the same ones, or another "
                "--out."
            )
        self.model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        self.state = RunState(**saved["position"])


def adapt(
    run: AdaptRun,
    stream: AdaptStream,
    held_out: AdaptStream | None,
    checkpoint: Path,
    *,
    resume: bool = False,
    on_checkpoint: Callable[[AdaptRun], None] | None = None,
) -> bool:
    """Train until the budget is used, and score on `held_out` at the end; return False if a signal stopped it."""
    if resume:
        run.load_state_dict(load_checkpoint(checkpoint))
    return train(
        "adapt",
        run,
        lambda: run.step(stream),
        checkpoint,
        checkpoint_seconds=run.recipe.checkpoint_seconds,
        longest_step=LONGEST_STEP_SECONDS,
        score=(lambda: run.score(held_out)) if held_out is not None else None,
        on_checkpoint=on_checkpoint,
    )


def run_adapt(args: argparse.Namespace, work: WorkFolder) -> bool:
    """Train from the parsed flags and export the adapter at every checkpoint; return False if a signal stopped it."""
    torch.set_num_threads(args.threads)
    if args.start and args.resume:
        raise TrainingError("--start begins a new run and --resume continues one: leave one of them out.")
    documents, manifest = read_documents(work.corpus), work.read_manifest()
    dtype = faster_dtype(args.device) if args.dtype == "auto" else args.dtype
    model = LoraModel(
        args.model, rank=args.rank, sentinels=args.sentinels, seed=args.seed, dtype=dtype, device=args.device
    )
    if args.start:
        model.load_state_dict(read_adapter(args.start, model.sentinels))
    budget = Budget(minutes=args.minutes, steps=args.steps)
    run = AdaptRun(model, AdaptRecipe(budget, rate=args.rate, rows=args.rows, length=args.length))
    stream = AdaptStream(documents, model.tokenizer, model.sentinels, seed=args.seed)
    held_out = None
    if work.held_out.is_file():
        projects = read_documents(work.held_out)
        held_out = AdaptStream(projects, model.tokenizer, model.sentinels, seed=1, prefix_weight=0.0)
    facts = _facts(args, model, dtype) | data_facts(manifest)
    return adapt(
        run,
        stream,
        held_out,
        args.out.with_name(args.out.name + ".ckpt"),
        resume=args.resume,
        on_checkpoint=lambda run: model.export(args.out, _card(facts, run.state)),
    )


def _facts(args: argparse.Namespace, model: LoraModel, dtype: str) -> dict[str, Any]:
    """Return the card's facts about the settings."""
    source = read_json(model.folder / "config.json").get(SOURCE) or {}
    names = {number: name for name, number in model.tokenizer.vocab.items()}
    name = args.model if "/" not in args.model else Path(args.model).name
    entry = find_entry(name)
    return {
        "model": name,
        "licence": entry.licence.lower() if entry else "that of its model",
        "source": f" (from {source['quantization']})" if "quantization" in source else "",
        "started": f", begun from the adapter {args.start.name}" if args.start else "",
        "dtype": dtype,
        "parameters": sum(value.numel() for value in model.state_dict().values()) / 1e6,
        **{flag: getattr(args, flag) for flag in ("rank", "rate", "rows", "length", "seed")},
        **{mark: names[number] for mark, number in asdict(model.sentinels).items()},
    }


def _card(facts: dict[str, Any], state: RunState) -> str:
    """Return the adapter's card as Markdown."""
    scores = "unmeasured"
    if state.history:
        last = state.history[-1]
        scores = f"{last['middle']:.3f} nats a token of a middle, {last['end']:.3f} for its end"
    minutes = state.seconds / 60
    return _CARD.format(**facts, scores=scores, tokens=state.tokens / 1e6, steps=state.step, minutes=minutes)
