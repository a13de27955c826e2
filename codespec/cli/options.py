"""Flags that several commands share, and how they become an engine. Knows flags and settings, no models."""

from __future__ import annotations

import argparse
import importlib.util
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec.cli.parser import Parser
from codespec.config import CHOICES, EngineConfig, read_caps
from codespec.errors import ConfigError, install_mend

if TYPE_CHECKING:
    from codespec.engine.engine import Engine
    from codespec.model_folders.choice import Choice

SETTINGS = (
    "model", "target", "drafter", "head", "device", "drafter_device", "dtype", "drafter_dtype", "mode", "proposers",
    "policy", "caps", "learn", "draft_tokens", "min_confidence", "warmup", "context", "first_answer_ms", "graph_rows",
    "threads", "tensor_parallel", "target_shape",
)  # fmt: skip


def count(text: str) -> int:
    """A whole number, or `auto`, which is 0."""
    if text != "auto" and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto")
    return 0 if text == "auto" else int(text)


def add_engine_options(parser: Parser, *, shape_flags: tuple[str, ...] = ("--target-shape",)) -> None:
    """The settings of an engine; defaults come from the configuration. `--help` shows those that people change often,
    `--help-all` the rest.
    """
    group = parser.add_argument_group("models and speculation (also CODESPEC_* variables and --config)")
    add_pair_options(group)
    group.add_argument("--device", help="auto, cpu or cuda (default cpu)")
    group.add_argument("--dtype", choices=CHOICES["dtype"], help="number format (default float32, or the model's)")
    group.add_argument("--mode", choices=CHOICES["mode"], help="exact: bit for bit; fast: up to near-ties")
    rare = partial(parser.add_rare, group)
    rare("--drafter-device", help="the drafter's device (default same: the target's)")
    rare(
        "--drafter-dtype",
        choices=CHOICES["drafter_dtype"],
        help="the drafter's (default: the target's; float32 for the starter pair's)",
    )
    rare("--head", metavar="FOLDER", help="an EAGLE-3 or DFlash head that was trained for the target (default none)")
    rare("--proposers", choices=CHOICES["proposers"], help="who guesses (default chain: suffix, head, drafter)")
    rare(
        "--policy",
        metavar="NAME",
        help="how the draft length is set: cost+syntax (default), cost, or to compare fixed[:N], confidence[:P], "
        "plus2minus1, ds4-80",
    )
    rare("--caps", metavar="CLASS=N,…", help="longest drafts by context: comment=10,python.docstring=0")
    rare("--no-learn", dest="learn", action="store_false", default=None, help="do not keep what is learned of the pair")
    rare("--draft-tokens", type=int, metavar="N", help="the longest draft in target tokens (default 32)")
    rare("--min-confidence", type=float, metavar="P", help="where the drafter stops (default 0.4)")
    rare("--warmup", type=int, metavar="N", help="tokens of context before drafting (default 0)")
    rare("--context", type=int, metavar="N", help="target tokens of prompt and completion together")
    rare(
        "--first-answer-ms",
        type=int,
        metavar="N",
        help="an editor's prompts are as long as can be read and answered in this time (default 800; 0: any length)",
    )
    rare("--graph-rows", type=int, metavar="N", help="rows of the largest graph on a GPU (default 128)")
    rare("--threads", type=count, metavar="N|auto", help="CPU threads (default auto: measured at start)")
    rare("--tensor-parallel", type=int, metavar="N", help="GPUs that hold the target together")
    rare(
        *shape_flags,
        dest="target_shape",
        choices=CHOICES["target_shape"],
        help="pad the target to a real model's cost (benchmarks)",
    )


def add_pair_options(group: argparse._ActionsContainer) -> None:
    """--config, --model, --target and --drafter."""
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="a TOML file of settings (default: your own config.toml)"
    )
    group.add_argument(
        "--model",
        metavar="NAME",
        help="target and drafter together: a name of `codespec models list`, or starter",
    )
    group.add_argument(
        "--target",
        metavar="PATH|HUB_ID",
        help="decides: a folder, a .gguf file, a pulled name or a hub id",
    )
    group.add_argument("--drafter", metavar="PATH|HUB_ID|none", help="guesses")


def load_engine(config: EngineConfig) -> Engine:
    """An engine with these settings. Says in one sentence what is missing in an editor-only installation."""
    require_torch()
    from codespec.engine.load import build_engine

    return build_engine(config)


def engine_config(options: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """The engine's settings by the flags given. Raises ModelError for a model that is not here, before anybody imports
    torch, which takes seconds.
    """
    config = choose_config(options, **overrides).config
    from codespec.model_folders.find import check_models

    check_models(config)
    return config


def choose_config(options: argparse.Namespace, **overrides: Any) -> Choice:
    """The settings by the flags given, and why they have their target and drafter; the models may be missing."""
    from codespec.model_folders.choice import choose  # with tokenizers and more, which `--help` does not need

    flags = {name: getattr(options, name) for name in SETTINGS}
    if flags["caps"] is not None:
        flags["caps"] = read_caps(flags["caps"])
    return choose({**flags, **overrides}, options.config)


def require_aiohttp() -> None:
    """Raises ConfigError where the daemon's package is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(f"aiohttp is not installed: {install_mend()}.")


def require_torch() -> None:
    """Raises ConfigError where the engine's packages are not installed."""
    try:
        import torch  # noqa: F401

        if importlib.util.find_spec("transformers") is None:  # its import takes seconds, and int8 models need none
            raise ModuleNotFoundError(name="transformers")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: {install_mend()}.") from error
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"The engine's packages are installed but do not load ({error}): {install_mend(flags='--force-reinstall')}."
        ) from error
