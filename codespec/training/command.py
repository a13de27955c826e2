"""`codespec train …`: calls the parts for the flags given; holds no recipe and no loop."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from codespec.training.corpus import build_corpus, read_documents
from codespec.training.pair import (
    SHAPES,
    Workplace,
    export_checkpoint,
    make_recipe,
    train_one,
    train_pair,
    train_tokenizers,
)
from codespec.training.schedule import Budget
from codespec.training.sources import (
    Package,
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
    elif args.action == "export":
        recipe = make_recipe(args.name, Budget(minutes=1), seed=args.seed, device="cpu")
        export_checkpoint(recipe, place, args.out)
    elif args.action == "pretrain":
        return 0 if _pretrain(args, place) else 3
    else:
        return 0 if _all(args, place) else 3
    return 0


def _packages(args: argparse.Namespace) -> Iterator[Package]:
    yield stdlib_package()
    yield header_package()
    for folder in args.site_packages:
        yield from installed_packages(folder, required=args.require)
    for folder in args.node_modules:
        yield from npm_packages(folder)


def _collect(args: argparse.Namespace, place: Workplace) -> None:
    manifest = build_corpus(_packages(args), place.folder)
    megabytes = int(str(manifest["bytes"])) / 1e6
    print(f"corpus: {manifest['documents']} files, {megabytes:.1f} MB in {place.corpus}")


def _pretrain(args: argparse.Namespace, place: Workplace) -> bool:
    torch.set_num_threads(args.threads)
    budget = Budget(minutes=args.minutes, steps=args.steps)
    recipe = make_recipe(args.name, budget, seed=args.seed, device=args.device)
    return train_one(recipe, place, documents=read_documents(place.corpus), resume=args.resume, out=args.out)


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
