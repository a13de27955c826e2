"""Settings to start a pair with, from what was measured. Knows the names of `EngineConfig`; measures no speed.

Speed decides in the end, and only a benchmark on the user's machine tells it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codespec.config import EngineConfig
from codespec.pair.facts import ModelFacts
from codespec.pair.gguf import read_source
from codespec.pair.oracle import Oracle
from codespec.pair.rows import Pair

PROCESSOR = Path("/proc/cpuinfo")
LEAST_RATIO = 2.0  # a drafter less than twice as small can't win
LEAST_SURVIVAL = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of `EngineConfig`, its value, and the reason in one clause ("" where it goes without saying)."""

    key: str
    value: str | int
    why: str = ""


def recommend(pair: Pair, oracles: Sequence[Oracle]) -> list[Setting]:
    """What to put into a configuration file; nothing for a target that can't be used."""
    if pair.target.reasons:
        return []
    useless = _why_useless(pair, oracles)
    ours = pair.target.name == EngineConfig().target
    settings = [Setting("model", "starter") if ours else Setting("target", pair.target.name)]
    settings.append(_dtype("dtype", pair.target))
    if useless:
        return [*settings, Setting("drafter", "none", useless), Setting("proposers", "suffix", "looks text up instead")]
    if pair.drafter.name != EngineConfig().drafter:
        settings.append(Setting("drafter", pair.drafter.name))
    settings += [_dtype("drafter_dtype", pair.drafter), Setting("proposers", "chain", "look text up, then draft")]
    return [*settings, _draft_tokens(pair, oracles)]


def computes_bfloat16() -> bool:
    """Whether the processor says that it multiplies bfloat16; where it can't be asked, no."""
    try:
        flags = PROCESSOR.read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def toml(settings: Sequence[Setting]) -> str:
    """The settings as a configuration file, reasons as comments."""
    lines = []
    for setting in settings:
        value = json.dumps(setting.value, ensure_ascii=False)  # a JSON string is a TOML string too
        lines.append(f"{setting.key} = {value}" + (f"  # {setting.why}" if setting.why else ""))
    return "".join(f"{line}\n" for line in lines)


def _why_useless(pair: Pair, oracles: Sequence[Oracle]) -> str:
    if pair.drafter.reasons:
        return "this one can't be used"
    if pair.size_ratio < LEAST_RATIO:
        return "too near the target's size to pay"
    best = max((oracle.survival for oracle in oracles if oracle.survival is not None), default=1.0)
    return "too little of its text survives" if best < LEAST_SURVIVAL else ""


def _dtype(key: str, side: ModelFacts) -> Setting:
    if side.weights.dtype == "F32" and not read_source(side.config):
        return Setting(key, "float32", "as it is stored")
    if not computes_bfloat16():
        return Setting(key, "float32", "this processor has no bfloat16 products")
    return Setting(key, "bfloat16", "checking several tokens costs about one")


def _draft_tokens(pair: Pair, oracles: Sequence[Oracle]) -> Setting:
    """The longest draft: the default, since the cost rule chooses below it; and what survives of it."""
    default = EngineConfig().draft_tokens
    if pair.shared:
        return Setting("draft_tokens", default, "ids pass straight through")
    measured = {oracle.tokens: oracle.survival for oracle in oracles if oracle.survival is not None}
    share = measured.get(default)
    if share is None:
        return Setting("draft_tokens", default, "not measured")
    return Setting("draft_tokens", default, f"{share:.0%} of a perfect draft survive")
