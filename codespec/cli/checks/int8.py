"""Check int8: the kernel used on this machine, and the rounding error of the target. Loads no model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from codespec.cli.checks.finding import Finding, from_error, warning, well
from codespec.contract.engine_config import EngineConfig
from codespec.errors import ModelError
from codespec.store.catalogue import find_entry
from codespec.store.machine import computes_bfloat16, has_gpu

if TYPE_CHECKING:
    from codespec.models.int8.kernels import Choice

KERNEL, ROUNDING = "kernel", "rounding"


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
