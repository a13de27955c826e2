"""Check whether exact mode holds on this processor, with which call shape, and at what cost.

Uses a loaded engine, or a daemon's report; loads no model.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from codespec.cli.checks.finding import Finding, from_error, warning, well
from codespec.contract.engine_config import EngineConfig
from codespec.errors import ModelError
from codespec.store.catalogue import find_entry
from codespec.store.machine import computes_bfloat16, has_gpu
from codespec.store.processor import processor
from codespec.user_folders import cache_folder

if TYPE_CHECKING:
    from codespec.engine.engine import Engine
    from codespec.models.call_shape import CallShape
    from codespec.models.language_model import LanguageModel
if TYPE_CHECKING:
    from codespec.models.int8.kernels import Choice

NAME = "arithmetic"
FAST_SET = "fast mode is set, so texts may differ at near-ties; exact mode was not tried"
MEND = 'set mode = "fast" to accept that, or report it'
CONTEXT, VERIFY, PROMPT = 64, 8, 256  # context tokens before the rows, rows of a small verify, rows of a prompt
SECONDS = 3.0  # to measure the cost of exact mode
WHOLE = 60.0  # for the search; a start tries only as many shapes as fit into a second
KERNEL, ROUNDING = "kernel", "rounding"


def check_daemon_arithmetic(told: Mapping[str, Any]) -> Finding:
    """Report the result of a ready daemon, which tests its models at startup and compares texts in idle time."""
    if variance := told.get("variance"):
        return _varying(str(variance))
    if told.get("mode") == "exact":
        return well(NAME, "the daemon is in exact mode; doctor measures the cost when no daemon runs")
    return well(NAME, FAST_SET if told.get("mode") == "fast" else "the daemon does not report its mode")


def check_arithmetic(engine: Engine, config: EngineConfig) -> Finding:
    """Search for the exact call shape again, ignoring the cached one. The engine can't be used afterwards."""
    if config.mode == "fast":
        return well(NAME, FAST_SET)
    if engine.mode == "fast":  # startup has just tried all shapes
        return _varying(engine.variance)
    from codespec.startup.batch_invariance import find_variance, tried_length
    from codespec.startup.call_search import settle
    from codespec.startup.tuning import MOST_CHUNK

    model, used, chunk = engine.target, engine.target.calls, config.prefill_chunk or MOST_CHUNK
    if model.device.type != "cpu":  # there is only one shape, and each start runs this whole test
        return well(
            NAME,
            f"exact mode holds with codespec's kernels: {tried_length(model)} tokens are equal in chunks and at once",
        )
    found = settle(model, chunk, WHOLE)
    if found.variance:
        return _varying(found.variance)
    how = f"{found.calls.label} on {processor().label}"
    said = f"exact mode holds and {_cost(model, found.calls, chunk)}: {how}; tried: {found.tried}"
    if found.calls == used:
        return well(NAME, said)
    model.use(used)
    variance = find_variance(model, chunk)
    if variance:
        said = f"{said}; the shape cached by an earlier start ({used.label}) no longer holds ({variance})"
        return warning(NAME, said, f"remove {cache_folder() / 'calls'}")
    return well(NAME, f"{said}; the shape in use, from an earlier search, holds too: {used.label}")


def _cost(model: LanguageModel, calls: CallShape, chunk: int) -> str:
    from codespec.startup.calls import fast_calls
    from codespec.startup.timing import cost_over_fast, time_forward, time_prompt

    assert model.cache is not None
    context, prompt = min(CONTEXT, model.cache.capacity - VERIFY), min(PROMPT, model.cache.capacity)
    timers = (
        lambda model: time_forward(model, (1, 1, context)),
        lambda model: time_forward(model, (VERIFY, 1, context)),
        lambda model: time_prompt(model, prompt, chunk),
    )
    one, few, many = cost_over_fast(model, calls, fast_calls(model), timers, SECONDS)
    rows = f"1 token, {VERIFY} tokens and a prompt of {prompt}"
    return f"takes {one:.2f}, {few:.2f} and {many:.2f} times as long as fast mode for {rows}"


def _varying(variance: str) -> Finding:
    return warning(NAME, f"exact mode does not hold here ({variance}), so texts may differ at near-ties", MEND)


def check_int8(config: EngineConfig, daemons: str = "") -> Iterator[Finding]:
    """Yield findings if a model is computed in int8 on the CPU.

    `daemons` is the kernel that a running daemon reports. The packages must be importable.
    """
    drafts = config.asks_drafter and config.drafter != "none" and config.drafter_dtype == "int8"
    on_gpu = config.device.startswith("cuda") or (config.device == "auto" and has_gpu())
    if on_gpu or not (drafts or config.dtype == "int8"):
        return
    from codespec.models.int8 import kernels

    try:
        choice = kernels.choose_kernel()
    except ModelError as error:
        yield from_error(KERNEL, error)
        return
    yield _check_kernel(choice, daemons or choice.label, kernels.SLOW)
    if config.dtype == "int8":
        yield well(ROUNDING, _rounding(config.target, choice.most))


def _check_kernel(choice: Choice, label: str, slow: float) -> Finding:
    said = f"int8 products by {label}"
    if not choice.slow:
        return well(KERNEL, said)
    other = "bfloat16" if computes_bfloat16() else "float32"
    mend = f'run doctor again when the machine is idle; if this stays, set dtype = "{other}"'
    return warning(KERNEL, f"{said}, and one took more than {slow:.0f} times as long as a float32 product", mend)


def _rounding(target: str, most: int) -> str:
    """Return the catalogue figures for weights within ±`most`, or the command that measures them."""
    entry, measure = find_entry(target), f"`codespec bench divergence --dtype int8 --target {shlex.quote(target)}`"
    figures = {known.most: known for known in entry.int8} if entry else {}
    if most in figures:
        return str(figures[most])
    for other in figures.values():
        return f"{other}; with ±{most}, as here, it was not compared: {measure} does so"
    return f"int8 was not compared with float32 for this model: {measure} does so"
