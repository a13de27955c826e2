"""Check an engine in this process: equal texts with and without drafts, exact mode, and the prompt budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from codespec.api.engine_config import EngineConfig
from codespec.api.types import Completion, CompletionRequest
from codespec.cli.checks.models import needed_bytes
from codespec.cli.checks.seen import Seen
from codespec.errors import Finding, failed, warning, well
from codespec.user_folders import cache_folder

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

ARITHMETIC, PROMPTS = "arithmetic", "prompts"  # names of findings
FAST_SET = "fast mode is set, so texts may differ at near-ties; exact mode was not tried"
TOKENS = 24
MAX_BYTES = 4e9  # maximum model size for a probe; a larger one takes minutes to load
PROMPT = """class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def add(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def subtract(self, other):
        return Point(self.x - other.x, self.y - other.y)

    def scale(self, factor):
        return Point("""
DIFFER = "report it, with the output of `codespec check`"


def probe(seen: Seen) -> Iterator[Finding]:
    """Load the models for one request at a time, complete a text twice, and check their arithmetic."""
    config = seen.config
    if config is None or seen.target is None or not (seen.packages and seen.fits):
        yield well("probe", "not tried: fix the failed checks above first")
        return
    small = replace(config, max_batch=1, cache_mb=0, learn=False, policy="fixed", draft_tokens=4, warmup=0)
    if needed_bytes(small, seen.target, seen.drafter) > MAX_BYTES:
        yield well("probe", "not tried, because loading would take long: start the daemon and run doctor again")
        return
    from codespec.engine.build import build_engine

    began = time.perf_counter()
    engine = build_engine(small)
    request = CompletionRequest(prefix=PROMPT, path="point.py", max_tokens=TOKENS)
    on, off = (engine.complete([replace(request, speculate=value)])[0] for value in (True, False))
    yield _compare(config, on, off, began)
    yield check_prompts(engine, config)
    yield check_arithmetic(engine, small)


def _compare(config: EngineConfig, on: Completion, off: Completion, began: float) -> Finding:
    if on.token_ids == off.token_ids:
        drafted = f"{on.stats.accepted} of {on.stats.drafted} drafted accepted"
        return well("probe", f"{TOKENS} tokens twice, equal ({drafted}), in {milliseconds(began)} with loading")
    if config.mode == "fast":
        message = "speculation changed a short text, which fast mode allows"
        return warning("probe", message, 'set mode = "exact" to prevent that')
    return failed("probe", "speculation changed a short text in exact mode", DIFFER)


def check_prompts(engine: Engine, config: EngineConfig) -> Finding:
    """Check the prompt budget that the settings give with the engine's target, timed again on a calmer machine."""
    from codespec.startup.parts import target_context
    from codespec.startup.prompt_budget import measure_again, prompt_budget

    context, reading = target_context(engine.target, config), measure_again(engine.target, [])
    tokens = prompt_budget(reading, config.first_answer_ms, context)
    takes = round(reading.answer(tokens) * 1000)
    message = f"a new document's prompt may take {tokens:,} of the context's {context:,} tokens, answered in {takes} ms"
    if tokens == context or takes <= config.first_answer_ms:
        return well(PROMPTS, message)
    fix = "close busy programs and run doctor again, or choose a smaller target"
    return warning(PROMPTS, f"{message}: later than first_answer_ms, and fewer tokens would be too few", fix)


def check_arithmetic(engine: Engine, config: EngineConfig) -> Finding:
    """Test the call shape in use again, as a first start does, whatever an earlier start kept."""
    if config.mode == "fast":
        return well(ARITHMETIC, FAST_SET)
    if engine.mode == "fast":  # startup has just tried all shapes
        return varying(engine.variance)
    model = engine.target
    if not model.searched:
        return well(ARITHMETIC, f"exact mode holds by construction: {model.kernel}")
    from codespec.backends.torch.model import TorchModel
    from codespec.startup.batch_invariance import find_variance, tried_length
    from codespec.startup.tuning import MAX_CHUNK

    assert isinstance(model, TorchModel)
    if variance := find_variance(model, config.prefill_chunk or MAX_CHUNK):
        message = f"the shape cached by an earlier start ({model.calls.label}) no longer holds ({variance})"
        return warning(ARITHMETIC, message, f"remove {cache_folder() / 'calls'}")
    return well(ARITHMETIC, f"exact mode holds: {tried_length(model)} tokens are equal in chunks and at once")


def varying(variance: str) -> Finding:
    """Return the finding for a model whose rows depend on each other in every call shape."""
    message = f"exact mode does not hold here ({variance}), so texts may differ at near-ties"
    return warning(ARITHMETIC, message, 'set mode = "fast" to accept that, or report it')


def milliseconds(began: float) -> str:
    """Return the time since then as text."""
    return f"{(time.perf_counter() - began) * 1000:.0f} ms"
