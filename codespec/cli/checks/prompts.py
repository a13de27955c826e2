"""How long prompts are here, and why: by the memory, and by how long they take to read. Knows a loaded engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codespec.cli.checks.finding import Finding, warning, well
from codespec.config import EngineConfig
from codespec.pair.context import CACHE_SHARE, SHARE

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

NAME = "prompts"


def check_prompts(engine: Engine, config: EngineConfig) -> Finding:
    """What the settings come to with the engine's target, whatever slots this engine has."""
    from codespec.engine.load import target_context
    from codespec.engine.reading import measure_again, prompt_budget

    context, longest = target_context(engine.target, config), engine.target.spec.max_length
    reading = measure_again(engine.target, [])
    tokens = prompt_budget(reading, config.first_answer_ms, context)
    takes = round(reading.answer(tokens) * 1000)
    said = f"context {context:,} tokens ({_why(config, context, longest)}); "
    if tokens == context:
        return well(NAME, f"{said}a new document's prompt may take them all (answered in about {takes} ms)")
    said += f"of a new document {tokens:,} are read (answered in about {takes} ms, first_answer_ms = "
    said += f"{config.first_answer_ms}; {1 / reading.seconds(1):,.0f} tokens a second)"
    if takes <= config.first_answer_ms:
        return well(NAME, said)
    mend = "choose a smaller target or a faster dtype, or run doctor again when the machine is less busy"
    return warning(NAME, f"{said}: no fewer are of use", mend)


def _why(config: EngineConfig, context: int, longest: int) -> str:
    if context == longest:
        return "all that the model takes"
    if config.context:
        return "as set"
    share = f"1/{CACHE_SHARE} of cache_mb" if config.cache_mb else f"1/{SHARE} of the memory"
    return f"by {share}; the model takes {longest:,}"
