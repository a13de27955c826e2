"""Check the settings of the models and their files: present, complete, compatible, and small enough for memory.

Loads no weights and downloads nothing. Sizes are estimates that leave out temporary tensors and padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from codespec.api.engine_config import EngineConfig
from codespec.cli.checks.machine import gigabytes
from codespec.cli.checks.seen import Seen
from codespec.cli.options import choose_config
from codespec.errors import Finding, failed, from_fault, warning, well
from codespec.pair.facts import ModelFacts, read_facts
from codespec.pair.report import check_fill_in, check_pair, describe
from codespec.pair.sample import find_sample
from codespec.store.catalogue import BYTES, room
from codespec.store.choice import offer_note
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


def check_settings(seen: Seen) -> Iterator[Finding]:
    """Check the engine's settings, and say which model they choose and why."""
    settings, choice = seen.options.config, choose_config(seen.options)
    seen.config = choice.config
    yield from (Finding("settings", "warning", note) for note in choice.notes)
    if not choice.notes:
        own = " (your own)" if settings.is_own else ""
        yield well("settings", f"read from {settings.file}{own}" if settings.file else "defaults, variables and flags")
    note, model = offer_note(choice.config), choice.config.model
    starter = f"starter, since {choice.why}; {note}" if note else ""
    yield well("model", starter or (f"{model}, {choice.why}" if model else choice.why))


def check_target(seen: Seen) -> Iterator[Finding]:
    """Check that the target's files are complete and can be used."""
    assert seen.config is not None
    found, seen.target = _look_at("target", seen.config.target)
    yield found


def check_drafter(seen: Seen) -> Iterator[Finding]:
    """Check the drafter in the same way, if there is one."""
    assert seen.config is not None
    if seen.config.drafter == "none":
        yield well("drafter", "none: drafts only copy from the text")
        return
    found, seen.drafter = _look_at("drafter", seen.config.drafter)
    yield found


def _look_at(role: str, name: str) -> tuple[Finding, ModelFacts | None]:
    """Return the finding about a model, and the facts in its files if it can be used."""
    model = resolve(name)
    if model.fetched() is None:
        fix = "the first start fetches it; `hf download` does so now"
        return warning(role, f"{name} is a hub id and not on this machine yet", fix), None
    facts = read_facts(model)
    return describe(role, facts), None if facts.reasons else facts


def check_together(seen: Seen) -> Iterator[Finding]:
    """Yield the verdict of `codespec check` for the pair."""
    assert seen.target is not None and seen.drafter is not None
    report = check_pair(seen.target, seen.drafter, find_sample())
    if report.problem:
        yield from_fault("pair", report.problem)
    else:
        yield well("pair", report.verdict + ("" if report.verdict == "works" else "; see `codespec check`"))


def check_filling(seen: Seen) -> Iterator[Finding]:
    """Check whether the target uses the text after the cursor."""
    assert seen.target is not None
    yield check_fill_in(seen.target)


def check_memory(seen: Seen) -> Iterator[Finding]:
    """Check whether models and caches fit into free memory, unless a daemon holds them or the drafter is unknown."""
    config, target, daemon = seen.config, seen.target, seen.daemon
    assert config is not None and target is not None
    if (daemon and daemon["state"] == "ready") or (seen.drafter is None and config.drafter != "none"):
        return
    need, start = needed_bytes(config, target, seen.drafter), start_bytes(config, target, seen.drafter)
    free = available_memory()
    seen.fits = free is None or need <= free
    left = "this system does not report free memory" if free is None else f"{gigabytes(free)} free"
    message = f"about {gigabytes(start)} needed, up to {gigabytes(need)} as the caches fill, {left}"
    if free is None or need <= NEARLY * free:
        yield well("memory", message)
        return
    fix = "close other programs, choose smaller models, or lower max_batch, cache_mb or context"
    yield warning("memory", message, fix) if seen.fits else failed("memory", message, fix)


def needed_bytes(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> float:
    """Estimate the bytes for weights in their number formats, caches, and the program itself."""
    space = context_room(config.cache_mb, machine_memory()) if config.device == "cpu" else 0  # a GPU has its own
    each, batch = slot_size(target, config.dtype, 1), config.max_batch or USUAL_BATCH
    context = choose_context(config.context, target.context or USUAL_CONTEXT, each, batch, space)
    return start_bytes(config, target, drafter) + cache_size(
        replace(config, context=context), _sides(config, target, drafter)
    )


def start_bytes(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> float:
    """Estimate the bytes of the daemon with almost empty caches, by the rule of `codespec models list`."""
    sides = _sides(config, target, drafter)
    return room(dtype for _, dtype in sides) + sum(weight_size(side, dtype) for side, dtype in sides)


def _sides(config: EngineConfig, target: ModelFacts, drafter: ModelFacts | None) -> list[tuple[ModelFacts, str]]:
    drafts = drafter if config.asks_drafter else None
    return [(target, config.dtype)] + ([(drafts, config.drafter_dtype)] if drafts else [])


def weight_size(model: ModelFacts, dtype: str) -> int:
    """Return the bytes of the weights in a number format; native kernels keep the bits of a GGUF file."""
    return model.file_bytes if dtype == "native" and model.file_bytes else model.weights.parameters * BYTES[dtype]


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
    numbers = 2 * layers * (number("num_key_value_heads") or heads) * size * min(context, model.context or context)
    if dtype == "native":  # a format of weight matrices only
        dtype = "float16" if values.get("model_type") in NATIVE_TYPES else "float32"
    return numbers * BYTES[dtype]
