"""Check the models: present, complete, compatible with each other, and small enough for memory.

Reads files only; loads no weights and downloads nothing. Sizes are estimates that leave out temporary tensors and
padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from codespec.cli.check import choose_sample
from codespec.cli.checks.machine import gigabytes
from codespec.contract.engine_config import EngineConfig
from codespec.errors import CodespecError, Finding, ModelError, failed, from_fault, warning, well
from codespec.pair.facts import ModelFacts, read_facts
from codespec.pair.report import check_pair, describe
from codespec.store.catalogue import BYTES, room
from codespec.store.machine import (
    IDLE_FACTOR,
    IDLE_MB,
    USUAL_CONTEXT,
    available_memory,
    choose_context,
    context_room,
    machine_memory,
)
from codespec.store.model_config import NATIVE_TYPES, text_config
from codespec.store.resolve import resolve

USUAL_BATCH = 8  # assumed max_batch if it is measured at startup
NEARLY = 0.8  # share of the free memory


def check_model(role: str, name: str) -> tuple[Finding, ModelFacts | None]:
    """Check that a model's folder exists, is complete and can be used; also return the facts in its files."""
    try:
        model = resolve(name)
        if model.fetched() is None:
            fix = "the first start fetches it; `hf download` does so now"
            return warning(role, f"{name} is a hub id and not on this machine yet", fix), None
        facts = read_facts(model)
    except ModelError as error:
        return from_fault(role, error.fault), None
    found = describe(role, facts)
    return found, facts if found.state == "ok" else None


def check_drafter(config: EngineConfig) -> tuple[Finding, ModelFacts | None]:
    """Check the drafter in the same way, if there is one."""
    if config.drafter == "none":
        return well("drafter", "none: drafts only copy from the text"), None
    return check_model("drafter", config.drafter)


def check_together(target: ModelFacts, drafter: ModelFacts) -> Iterator[Finding]:
    """Yield the verdict of `codespec check` for the pair."""
    try:
        report = check_pair(target, drafter, choose_sample(None))
    except CodespecError as error:
        yield from_fault("pair", error.fault)
        return
    if report.problem:
        yield from_fault("pair", report.problem)
    else:
        yield well("pair", report.verdict + ("" if report.verdict == "works" else "; see `codespec check`"))


def check_memory(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> Finding:
    """Check whether models and caches fit into free memory."""
    need = needed_bytes(config, target, drafter)
    free = available_memory()
    message = (
        f"about {gigabytes(start_bytes(config, target, drafter))} needed, up to {gigabytes(need)} as the caches fill"
    )
    if free is None:
        return well("memory", f"{message}; this system does not report free memory")
    message += f", {gigabytes(free)} free"
    fix = "close other programs, choose smaller models, or lower max_batch, cache_mb or context"
    if need > free:
        return failed("memory", message, fix)
    return warning("memory", message, fix) if need > NEARLY * free else well("memory", message)


def needed_bytes(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> float:
    """Estimate the bytes for weights in their number formats, caches, and the program itself."""
    sides, program = _sides(config, target, drafter), start_bytes(config, target, drafter)
    return program + cache_size(replace(config, context=_context(config, target)), sides)


def start_bytes(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> float:
    """Estimate the bytes of the daemon with almost empty caches, by the rule of `codespec models list`."""
    sides = _sides(config, target, drafter)
    return room(dtype for _, dtype in sides) + sum(weight_size(side, dtype) for side, dtype in sides)


def _sides(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> list[tuple[ModelFacts, str]]:
    return [(target, config.dtype)] + ([(drafter, config.drafter_dtype)] if drafter else [])


def _context(config: EngineConfig, target: ModelFacts) -> int:
    """Return the target's context in tokens; USUAL_CONTEXT on a GPU, whose memory is separate."""
    room = context_room(config.cache_mb, machine_memory()) if config.device == "cpu" else 0
    each, batch = slot_size(target, config.dtype, 1), config.max_batch or USUAL_BATCH
    return choose_context(config.context, target.context or USUAL_CONTEXT, each, batch, room)


def weight_size(model: ModelFacts, dtype: str) -> int:
    """Return the bytes of the weights in a number format; native kernels keep the bits of a GGUF file."""
    if dtype == "native" and model.file_bytes:
        return model.file_bytes
    return model.weights.parameters * BYTES[dtype]


def cache_size(config: EngineConfig, sides: Sequence[tuple[ModelFacts, str]]) -> int:
    """Return the bytes of the KV caches of models in their number formats."""
    if config.cache_mb:
        return config.cache_mb * 2**20
    context, batch = config.context or USUAL_CONTEXT, config.max_batch or USUAL_BATCH
    running = batch * sum(slot_size(model, dtype, context) for model, dtype in sides)
    return max(running, min(IDLE_FACTOR * running, IDLE_MB * 2**20))


def slot_size(model: ModelFacts, dtype: str, context: int) -> int:
    """Return the bytes of one request's keys and values; 0 if config.json lacks the shape."""
    values = text_config(model.config)

    def number(*names: str) -> int:
        return next((values[name] for name in names if isinstance(values.get(name), int)), 0)

    layers, heads = number("num_hidden_layers", "n_layer"), number("num_attention_heads", "n_head")
    size = number("head_dim") or number("hidden_size", "n_embd") // max(1, heads)
    tokens = min(context, model.context or context)
    numbers = 2 * layers * (number("num_key_value_heads") or heads) * size * tokens
    if dtype == "native":  # a format of weight matrices only
        dtype = "float16" if values.get("model_type") in NATIVE_TYPES else "float32"
    return numbers * BYTES[dtype]
