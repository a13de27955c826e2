"""Check the engine: int8 kernel, exact mode, prompt budget, and equal texts with and without drafts.

The checks use a loaded engine, or a running daemon's report.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from codespec.cli.checks.models import needed_bytes
from codespec.cli.daemon_call import Address
from codespec.contract.engine_config import EngineConfig
from codespec.contract.types import Completion, CompletionRequest, Stats
from codespec.errors import CodespecError, DaemonError, ModelError
from codespec.finding import Finding, failed, from_fault, warning, well
from codespec.pair.facts import ModelFacts
from codespec.store.machine import CACHE_SHARE, MEMORY_SHARE, computes_bfloat16, has_gpu
from codespec.user_folders import cache_folder

if TYPE_CHECKING:
    from codespec.engine.engine import Engine
    from codespec.models.int8.kernels import Choice

ARITHMETIC, KERNEL, PROMPTS = "arithmetic", "kernel", "prompts"  # names of findings
FAST_SET = "fast mode is set, so texts may differ at near-ties; exact mode was not tried"
ACCEPT = 'set mode = "fast" to accept that, or report it'
TOKENS = 24
MAX_BYTES = 4e9  # maximum model size for a probe; a larger one takes minutes to load
PROBE_SECONDS = 60.0  # for a daemon that is busy
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
SLOW_MEND = "use a smaller model, or a daemon on another machine (--url)"
DIFFER = "report it, with the output of `codespec check`"


def check_daemon_arithmetic(daemon: Mapping[str, Any]) -> Finding:
    """Report the result of a ready daemon, which tests its models at startup and compares texts in idle time."""
    if variance := daemon.get("variance"):
        return _varying(str(variance))
    if daemon.get("mode") == "exact":
        return well(ARITHMETIC, "the daemon is in exact mode")
    return well(ARITHMETIC, FAST_SET if daemon.get("mode") == "fast" else "the daemon does not report its mode")


def check_arithmetic(engine: Engine, config: EngineConfig) -> Finding:
    """Test the call shape in use again, as a first start does, whatever an earlier start kept."""
    if config.mode == "fast":
        return well(ARITHMETIC, FAST_SET)
    if engine.mode == "fast":  # startup has just tried all shapes
        return _varying(engine.variance)
    model = engine.target
    if not model.searched:
        return well(ARITHMETIC, f"exact mode holds by construction: {model.kernel}")
    from codespec.models.torch_model import TorchModel
    from codespec.startup.batch_invariance import find_variance, tried_length
    from codespec.startup.tuning import MOST_CHUNK

    assert isinstance(model, TorchModel)
    variance = find_variance(model, config.prefill_chunk or MOST_CHUNK)
    if variance:
        said = f"the shape cached by an earlier start ({model.calls.label}) no longer holds ({variance})"
        return warning(ARITHMETIC, said, f"remove {cache_folder() / 'calls'}")
    return well(ARITHMETIC, f"exact mode holds: {tried_length(model)} tokens are equal in chunks and at once")


def _varying(variance: str) -> Finding:
    return warning(ARITHMETIC, f"exact mode does not hold here ({variance}), so texts may differ at near-ties", ACCEPT)


def check_kernels(config: EngineConfig, daemons: str = "") -> Iterator[Finding]:
    """Yield findings about the kernels if a model is computed by the native ones, or in int8, on the CPU.

    `daemons` is the kernel that a running daemon reports. The packages must be importable.
    """
    if config.dtype == "native":
        yield _check_native()
        return
    drafts = config.asks_drafter and config.drafter != "none" and config.drafter_dtype == "int8"
    on_gpu = config.device.startswith("cuda") or (config.device == "auto" and has_gpu())
    if on_gpu or not (drafts or config.dtype == "int8"):
        return
    from codespec.models.int8 import kernels

    try:
        choice = kernels.choose_kernel()
    except ModelError as error:
        yield from_fault(KERNEL, error.fault)
        return
    yield _check_kernel(choice, daemons or choice.label, kernels.SLOW)


def _check_native() -> Finding:
    from codespec_native.library import NativeError, find_path, path_name

    try:
        name = path_name(find_path())
    except NativeError as error:
        return failed(KERNEL, str(error).rstrip("."), "build it with `python -m codespec_native.build`")
    if name == "scalar":
        return warning(KERNEL, "native kernels without vector instructions, which are many times slower", SLOW_MEND)
    return well(KERNEL, f"native kernels, {name}")


def _check_kernel(choice: Choice, label: str, slow: float) -> Finding:
    said = f"int8 products by {label}"
    if not choice.slow:
        return well(KERNEL, said)
    other = "bfloat16" if computes_bfloat16() else "float32"
    mend = f'run doctor again when the machine is idle; if this stays, set dtype = "{other}"'
    return warning(KERNEL, f"{said}, and one took more than {slow:.0f} times as long as a float32 product", mend)


def probe_daemon(address: Address) -> Finding:
    """Send the probe to a ready daemon."""
    texts, began = [], time.perf_counter()
    for speculate in (True, False):
        body = {"prefix": PROMPT, "path": "point.py", "shape": "raw", "max_tokens": TOKENS, "speculate": speculate}
        try:
            texts.append(address.complete(body, PROBE_SECONDS))
        except DaemonError as error:
            said = f"the daemon did not complete a short text ({error})"
            return failed("probe", said, "read its output, or restart it")
    if texts[0] != texts[1]:
        return failed("probe", "the daemon writes another text with speculation than without", DIFFER)
    return well("probe", f"the daemon wrote {len(texts[0])} characters twice, equal, in {_ms(began)}")


def probe_engine(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> Iterator[Finding]:
    """Load the models for one request at a time, and also check their arithmetic. The packages must be importable."""
    small = replace(config, max_batch=1, cache_mb=0, learn=False, policy="fixed", draft_tokens=4, warmup=0)
    if needed_bytes(small, target, drafter) > MAX_BYTES:
        yield well("probe", "not tried, because loading would take long: start the daemon and run doctor again")
        yield well(PROMPTS, "not measured, for the same reason")
        yield well(ARITHMETIC, "not tried, for the same reason")
        return
    from codespec.engine.build import build_engine

    began = time.perf_counter()
    try:
        engine = build_engine(small)
        request = CompletionRequest(prefix=PROMPT, path="point.py", max_tokens=TOKENS)
        on, off = (engine.complete([replace(request, speculate=value)])[0] for value in (True, False))
    except CodespecError as error:
        yield from_fault("probe", error.fault)
        return
    yield _compare(config, on, off, began)
    yield check_prompts(engine, config)
    yield check_arithmetic(engine, small)


def _compare(config: EngineConfig, on: Completion, off: Completion, began: float) -> Finding:
    if on.token_ids == off.token_ids:
        return well("probe", f"{TOKENS} tokens twice, equal ({_accepted(on.stats)}), in {_ms(began)} with loading")
    if config.mode == "fast":
        return warning(
            "probe", "speculation changed a short text, which fast mode allows", 'set mode = "exact" to prevent that'
        )
    return failed("probe", "speculation changed a short text in exact mode", DIFFER)


def _accepted(stats: Stats) -> str:
    return f"{stats.accepted} of {stats.drafted} drafted accepted"


def _ms(began: float) -> str:
    return f"{(time.perf_counter() - began) * 1000:.0f} ms"


def check_prompts(engine: Engine, config: EngineConfig) -> Finding:
    """Check the context and prompt budget that the settings give with the engine's target, regardless of its slots."""
    from codespec.startup.parts import target_context
    from codespec.startup.prompt_budget import measure_again, prompt_budget

    context, longest = target_context(engine.target, config), engine.target.spec.max_length
    reading = measure_again(engine.target, [])
    tokens = prompt_budget(reading, config.first_answer_ms, context)
    takes = round(reading.answer(tokens) * 1000)
    said = f"context {context:,} tokens ({_why_context(config, context, longest)}); "
    if tokens == context:
        return well(PROMPTS, f"{said}a new document's prompt may take all of them (answered in about {takes} ms)")
    said += f"a new document's prompt may take {tokens:,} of them (answered in about {takes} ms, first_answer_ms = "
    said += f"{config.first_answer_ms}; {1 / reading.seconds(1):,.0f} tokens a second)"
    if takes <= config.first_answer_ms:
        return well(PROMPTS, said)
    mend = "close busy programs and run doctor again, or choose a smaller target"
    return warning(PROMPTS, f"{said}: later than first_answer_ms, and fewer tokens would be too few", mend)


def _why_context(config: EngineConfig, context: int, longest: int) -> str:
    if context == longest:
        return "the model's maximum"
    if config.context:
        return "as set"
    share = f"1/{CACHE_SHARE} of cache_mb" if config.cache_mb else f"1/{MEMORY_SHARE} of the memory"
    return f"limited to {share}; the model's maximum is {longest:,}"
