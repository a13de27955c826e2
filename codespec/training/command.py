"""`codespec train …`: calls the parts for the flags given; holds no recipe and no loop."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

from codespec.errors import TrainingError
from codespec.folders.find import find_folder
from codespec.models.loader import load_model
from codespec.models.processor import processor
from codespec.training.adapt_command import run_adapt
from codespec.training.arithmetic import faster_dtype
from codespec.training.checkpoint import write_atomically
from codespec.training.corpus import HELD_OUT_NAME, build_corpus, read_documents
from codespec.training.evaluation import choose_places, evaluate_pair, evaluation_engine, writing_engine
from codespec.training.evaluation_report import report
from codespec.training.fetch import fetch_packages
from codespec.training.held_out import HeldOut, read_held_out
from codespec.training.lessons import read_lessons, save_lessons, write_lessons
from codespec.training.package_list import read_package_list
from codespec.training.pair import (
    SHAPES,
    Workplace,
    export_checkpoint,
    make_recipe,
    train_one,
    train_pair,
    train_tokenizers,
)
from codespec.training.pretrain import catching_signals
from codespec.training.schedule import Budget
from codespec.training.showcase import showcase
from codespec.training.sources import (
    Package,
    debian_sources,
    header_package,
    installed_packages,
    npm_packages,
    stdlib_package,
)


def run_train(args: argparse.Namespace) -> int:
    """Run the chosen action; 0 when it finished, 3 when a signal stopped it with a checkpoint kept."""
    place = Workplace(args.work)
    if args.action == "corpus":
        _collect(args, place)
    elif args.action == "tokenizers":
        train_tokenizers(place)
    elif args.action == "lessons":
        _teach(args, place)
    elif args.action == "export":
        recipe = make_recipe(args.name, Budget(minutes=1), seed=args.seed, device="cpu")
        export_checkpoint(recipe, place, args.out, args.start)
    elif args.action == "eval":
        _evaluate(args, place)
    elif args.action == "adapt":
        return 0 if run_adapt(args, place) else 3
    elif args.action == "pretrain":
        return 0 if _pretrain(args, place) else 3
    else:
        return 0 if _all(args, place) else 3
    return 0


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


def _collect(args: argparse.Namespace, place: Workplace) -> None:
    wanted = read_package_list(args.list)
    fetched = (place.folder / "packages").absolute()
    if args.fetch:
        fetch_packages(wanted, fetched)
    manifest = build_corpus(_packages(args, fetched), place.folder, room=wanted.room if args.fetch else {})
    sizes = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in manifest["bytes_by_language"].items())
    print(f"corpus: {manifest['documents']} files, {manifest['bytes'] / 1e6:.1f} MB ({sizes}) in {place.corpus}")


def _pretrain(args: argparse.Namespace, place: Workplace) -> bool:
    torch.set_num_threads(args.threads)
    budget = Budget(minutes=args.minutes, steps=args.steps)
    recipe = make_recipe(args.name, budget, seed=args.seed, device=args.device, rate=args.rate)
    lessons = read_lessons(place.lessons) if args.lessons else []
    documents = read_documents(place.corpus)
    return train_one(
        recipe, place, documents=documents, resume=args.resume, start=args.start, out=args.out, lessons=lessons
    )


def _teach(args: argparse.Namespace, place: Workplace) -> None:
    """Writes lessons until there are enough, the time is over or a signal comes; what is written is kept."""
    torch.set_num_threads(args.threads)
    documents = read_documents(place.corpus)
    engine = writing_engine(load_model(args.target, device=args.device, dtype=faster_dtype(args.device)))
    end = time.monotonic() + 60 * args.minutes
    with catching_signals() as interruption:
        written = list(
            write_lessons(
                engine.complete,
                documents,
                args.places,
                seed=args.seed,
                stop=lambda: interruption.wanted or time.monotonic() >= end,
            )
        )
    save_lessons(place.lessons, written)
    print(f"lessons: {len(written)} texts in {place.lessons}")


def _evaluate(args: argparse.Namespace, place: Workplace) -> None:
    if args.show and (args.compare or args.json or args.limit):
        raise TrainingError("--show prints one pair's completions and measures nothing: leave the other flags out.")
    torch.set_num_threads(args.threads)
    file = args.corpus_held or place.folder / HELD_OUT_NAME
    held_out = read_held_out(file, named=args.corpus_held is not None, prompts=args.prompts)
    if args.show:
        engine = evaluation_engine(load_model(args.target, device=args.device), None)
        print(showcase(engine.complete, held_out, args.show, seed=args.seed))
    else:
        _measure(args, held_out)


def _measure(args: argparse.Namespace, held_out: HeldOut) -> None:
    places = choose_places(held_out, seed=args.seed, limit=args.limit)
    names = {"before": args.compare} if args.compare else {}
    names["after" if names else "pair"] = (args.target, args.drafter)
    for name in (name for pair in names.values() for name in pair if name != "none"):
        find_folder(name)  # said now, not after minutes of work
    scores = {
        label: evaluate_pair(target, drafter, places, device=args.device, label=label)
        for label, (target, drafter) in names.items()
    }
    print(processor().label)
    print(f"held-out files: {', '.join(f'{row} {len(found)}' for row, found in held_out.rows.items())}")
    print("\n\n".join(filter(None, [held_out.note, report(list(scores.values()))])))
    if args.json:
        values: dict[str, Any] = {"date": date.today().isoformat(), "processor": processor().label}
        values |= {
            "seed": args.seed,
            "limit": args.limit,
            "held_out": held_out.digests,
            "places": places.counts,
            **{label: pair.as_dict() for label, pair in scores.items()},
        }
        write_atomically(args.json, (json.dumps(values, indent=1) + "\n").encode())


def _all(args: argparse.Namespace, place: Workplace) -> bool:
    torch.set_num_threads(args.threads)
    if not (args.resume and place.corpus.is_file()):
        _collect(args, place)
    if not (args.resume and place.tokenizer("drafter").is_dir()):
        train_tokenizers(place)
    minutes = {"drafter": args.drafter_minutes, "target": args.target_minutes}
    recipes = {
        name: make_recipe(name, Budget(minutes=minutes[name]), seed=args.seed, device=args.device) for name in SHAPES
    }
    return train_pair(place, recipes, args.out, resume=args.resume)
