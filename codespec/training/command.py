"""`codespec train …`: reads arguments and calls the parts; holds no recipe and no loop."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

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

STARTER = Path(__file__).resolve().parent.parent / "starter"


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `corpus`, `tokenizers`, `pretrain`, `export` and `all` to the parser of `codespec train`."""
    parser.add_argument("--work", type=Path, default=Path(".train"), help="folder for all work files (.train)")
    actions = parser.add_subparsers(dest="action", required=True)
    corpus = actions.add_parser("corpus", help="collect permissively licensed source from installed packages")
    _add_corpus_arguments(corpus)
    actions.add_parser("tokenizers", help="train both tokenizers on a sample of the corpus")
    one = actions.add_parser("pretrain", help="train one model")
    one.add_argument("name", choices=sorted(SHAPES))
    one.add_argument("--minutes", type=float, default=60.0, help="budget in minutes of working time (60)")
    one.add_argument("--steps", type=int, default=0, help="budget in steps; a resume then repeats exactly")
    export = actions.add_parser("export", help="write a checkpoint's weights as a Hugging Face folder")
    export.add_argument("name", choices=sorted(SHAPES))
    both = actions.add_parser("all", help="corpus, tokenizers and both models")
    _add_corpus_arguments(both)
    both.add_argument("--drafter-minutes", type=float, default=17.0)
    both.add_argument("--target-minutes", type=float, default=63.0)
    for action in (one, export, both):
        action.add_argument("--out", type=Path, default=STARTER, help="where the finished model folders go")
        action.add_argument("--seed", type=int, default=0)
    for action in (one, both):
        action.add_argument("--resume", action="store_true", help="go on from the checkpoints")
        action.add_argument("--threads", type=int, default=2)
        action.add_argument("--device", choices=("cpu", "cuda"), default="cpu")


def _add_corpus_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--site-packages",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="installed Python packages to read (more than once)",
    )
    parser.add_argument("--node-modules", type=Path, action="append", default=[], metavar="FOLDER")
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="fail if this package is missing or its licence is unclear",
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
