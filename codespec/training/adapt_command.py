"""`codespec train adapt`: from flags to a model that is taught, and to its card. Holds no loop."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from codespec.catalogue.conversion_cache import SOURCE
from codespec.errors import TrainingError
from codespec.text.control_tokens import read_json
from codespec.training.adapt import AdaptRecipe, AdaptRun, adapt
from codespec.training.adapt_samples import AdaptStream
from codespec.training.adapter_card import adapter_card
from codespec.training.adapting import Adapting, read_adapter
from codespec.training.arithmetic import faster_dtype
from codespec.training.corpus import HELD_OUT_NAME, read_documents
from codespec.training.pair import Workplace, read_manifest
from codespec.training.schedule import Budget


def run_adapt(args: argparse.Namespace, place: Workplace) -> bool:
    """Teaches, and writes the adapter at every checkpoint; False when a signal stopped it first."""
    torch.set_num_threads(args.threads)
    if args.start and args.resume:
        raise TrainingError("--start begins anew from an adapter and --resume goes on with a run: leave one out.")
    documents, manifest = read_documents(place.corpus), read_manifest(place)
    dtype = faster_dtype(args.device) if args.dtype == "auto" else args.dtype
    model = Adapting(
        args.model, rank=args.rank, sentinels=args.sentinels, seed=args.seed, dtype=dtype, device=args.device
    )
    if args.start:
        model.restore(read_adapter(args.start, model.sentinels))
    budget = Budget(minutes=args.minutes, steps=args.steps)
    run = AdaptRun(model, AdaptRecipe(budget, rate=args.rate, rows=args.rows, length=args.length))
    stream = AdaptStream(documents, model.tokenizer, model.sentinels, seed=args.seed)
    held = place.folder / HELD_OUT_NAME
    held_out = None
    if held.is_file():
        held_out = AdaptStream(read_documents(held), model.tokenizer, model.sentinels, seed=1, prefix_weight=0.0)
    facts = _facts(args, model, dtype)
    return adapt(
        run,
        stream,
        held_out,
        args.out.with_name(args.out.name + ".ckpt"),
        resume=args.resume,
        on_checkpoint=lambda run: model.export(args.out, adapter_card(facts, run.position, manifest)),
    )


def _facts(args: argparse.Namespace, model: Adapting, dtype: str) -> dict[str, Any]:
    source = read_json(model.folder / "config.json").get(SOURCE) or {}
    names = {number: name for name, number in model.tokenizer.vocab.items()}
    return {
        "model": args.model if "/" not in args.model else Path(args.model).name,
        "source": f" (from {source['quantization']})" if "quantization" in source else "",
        "rank": args.rank,
        "rate": args.rate,
        "rows": args.rows,
        "length": args.length,
        "seed": args.seed,
        "dtype": dtype,
        "started": f", begun from the adapter {args.start.name}" if args.start else "",
        "parameters": sum(value.numel() for value in model.state().values()) / 1e6,
        "sentinels": [names[number] for number in model.sentinels.ids],
    }
