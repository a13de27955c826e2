"""`codespec train …`: run the action named by the flags."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

from codespec.backends.torch.loader import load_torch_model
from codespec.errors import TrainingError
from codespec.store.machine import processor
from codespec.store.resolve import resolve
from codespec_lab.corpus.build import build_corpus
from codespec_lab.corpus.documents import read_documents, write_atomically
from codespec_lab.corpus.fetch import STARTER_LIST, fetch_packages, read_package_list
from codespec_lab.corpus.held_out import HeldOut, read_held_out
from codespec_lab.corpus.sources import (
    Package,
    debian_sources,
    header_package,
    installed_packages,
    npm_packages,
    stdlib_package,
)
from codespec_lab.progress import StageBar
from codespec_lab.training.adapt import run_adapt
from codespec_lab.training.distill.places import choose_places
from codespec_lab.training.distill.texts import (
    DistillationExample,
    distillation_engine,
    generate_examples,
    read_examples,
    save_examples,
)
from codespec_lab.training.evaluation import choose_eval_set, evaluate_pair, evaluation_engine, report, show_completions
from codespec_lab.training.pair import WorkFolder, cut_tokenizer, make_recipe, train_one, train_tokenizers
from codespec_lab.training.run import Budget, catching_signals, faster_dtype

STOPPED = 3


def run_train(args: argparse.Namespace) -> int:
    """Run the chosen action; return 0 if it finished, 3 if a signal stopped it after saving a checkpoint."""
    actions: dict[str, Callable[[argparse.Namespace, WorkFolder], bool]] = {
        "corpus": _build_corpus,
        "tokenizers": _train_tokenizers,
        "cut-tokenizer": _cut_tokenizer,
        "pretrain": _pretrain,
        "distill-data": _write_distill_data,
        "adapt": run_adapt,
        "eval": _evaluate,
    }
    return 0 if actions[args.action](args, WorkFolder(args.work)) else STOPPED


def _packages(args: argparse.Namespace, fetched: Path) -> Iterator[Package]:
    yield stdlib_package()
    yield header_package()
    for folder in (*args.site_packages, *([fetched / "pypi"] if args.fetch else ())):
        yield from installed_packages(folder, required=args.require)
    for folder in (*args.node_modules, *([fetched / "npm" / "node_modules"] if args.fetch else ())):
        yield from npm_packages(folder)
    if args.fetch:
        yield from debian_sources(fetched / "debian" / "sources")
        yield from debian_sources(fetched / "debian_dev" / "sources")


def _build_corpus(args: argparse.Namespace, work: WorkFolder) -> bool:
    wanted = read_package_list(args.list or STARTER_LIST)
    fetched = (work.folder / "packages").absolute()
    if args.fetch:
        fetch_packages(wanted, fetched)
    manifest = build_corpus(_packages(args, fetched), work.folder, max_chars=wanted.max_chars if args.fetch else {})
    sizes = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in manifest["bytes_by_language"].items())
    print(f"corpus: {manifest['documents']} files, {manifest['bytes'] / 1e6:.1f} MB ({sizes}) in {work.corpus}")
    return True


def _train_tokenizers(args: argparse.Namespace, work: WorkFolder) -> bool:
    train_tokenizers(work)
    return True


def _cut_tokenizer(args: argparse.Namespace, work: WorkFolder) -> bool:
    cut_tokenizer(work, resolve(args.model).folder())
    return True


def _pretrain(args: argparse.Namespace, work: WorkFolder) -> bool:
    torch.set_num_threads(args.threads)
    budget = Budget(minutes=args.minutes, steps=args.steps)
    return train_one(
        make_recipe(args.name, budget, seed=args.seed, device=args.device, rate=args.rate),
        work,
        distilled=read_examples(work.distill_data) if args.distill_data else [],
        documents=read_documents(work.corpus),
        resume=args.resume,
        start=args.start,
        layers=args.layers,
        out=args.out,
    )


def _write_distill_data(args: argparse.Namespace, work: WorkFolder) -> bool:
    """Write examples until there are enough, the time is up or a signal arrives; keep those written."""
    torch.set_num_threads(args.threads)
    documents = read_documents(work.corpus)
    places = choose_places(documents, args.positions, seed=args.seed)
    engine = distillation_engine(load_torch_model(args.target, device=args.device, dtype=faster_dtype(args.device)))
    end, bar, examples = time.monotonic() + 60 * args.minutes, StageBar("distill"), list[DistillationExample]()
    with catching_signals() as interruption:
        stop: Callable[[], bool] = lambda: interruption.requested or time.monotonic() >= end  # noqa: E731
        for group in generate_examples(engine.complete, places, seed=args.seed, stop=stop):
            examples += group
            bar.update(len(examples) / len(places), f"{len(examples)} texts")
    save_examples(work.distill_data, examples)
    print(f"distill-data: {len(examples)} texts in {work.distill_data}")
    return True


def _evaluate(args: argparse.Namespace, work: WorkFolder) -> bool:
    if args.show and (args.compare or args.json or args.limit):
        raise TrainingError("--show prints one pair's completions and measures nothing: leave the other flags out.")
    torch.set_num_threads(args.threads)
    file = args.corpus_held or work.held_out
    held_out = read_held_out(file, named=args.corpus_held is not None, prompts=args.prompts)
    if args.show:
        engine = evaluation_engine(load_torch_model(args.target, device=args.device), None)
        print(show_completions(engine.complete, held_out, args.show, seed=args.seed))
    else:
        _measure(args, held_out)
    return True


def _measure(args: argparse.Namespace, held_out: HeldOut) -> None:
    eval_set = choose_eval_set(held_out, seed=args.seed, limit=args.limit)
    pairs = {"before": args.compare} if args.compare else {}
    pairs["after" if pairs else "pair"] = (args.target, args.drafter)
    for name in (name for pair in pairs.values() for name in pair if name != "none"):
        resolve(name).folder()  # report a missing model before minutes of work
    scores = {
        label: evaluate_pair(target, drafter, eval_set, device=args.device, label=label)
        for label, (target, drafter) in pairs.items()
    }
    print(processor().label)
    print(f"held-out files: {', '.join(f'{row} {len(found)}' for row, found in held_out.rows.items())}")
    print("\n\n".join(filter(None, [held_out.note, report(list(scores.values()))])))
    if args.json:
        values: dict[str, Any] = {
            "date": date.today().isoformat(),
            "processor": processor().label,
            "seed": args.seed,
            "limit": args.limit,
            "held_out": held_out.digests,
            "places": eval_set.counts,
            **{label: pair.as_dict() for label, pair in scores.items()},
        }
        write_atomically(args.json, (json.dumps(values, indent=1) + "\n").encode())
