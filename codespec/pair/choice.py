"""Which target and drafter are meant: `model` chooses both, `target` and `drafter` one each, and nothing set means the
best pair on this machine.

Knows how the three settings overrule each other, what is pulled and what the processor computes; fetches and loads
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.catalogue.entries import Entry, find_entry
from codespec.catalogue.pairs import REFERENCE, STARTER_NAME, Pair, default_model, pair_of
from codespec.catalogue.room import written
from codespec.catalogue.store import find_pulled
from codespec.config import EngineConfig, make_config, read_levels
from codespec.errors import ConfigError
from codespec.pair.settings import computes_bfloat16


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and in a few words why it has its target and drafter."""

    config: EngineConfig
    why: str


def resolve(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> EngineConfig:
    """The configuration from a TOML file (the user's own where none is named), then CODESPEC_* variables, then flags
    that are not None.

    Raises ConfigError naming the first key or variable that can't be used, or a model that is unknown or not pulled.
    """
    return choose(flags, file, environment).config


def choose(flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None) -> Choice:
    """As `resolve`, with the reason."""
    values, place = _merge(flags, file, environment)
    name = values.get("model", "")
    if name:
        return Choice(_with_pair(values, name), f"named by {place}")
    if "target" in values:
        return Choice(make_config(values), "target and drafter are named one by one")
    if default_model() == STARTER_NAME:
        return Choice(make_config(values), f"{REFERENCE} has not been pulled")
    return Choice(_with_pair(values, default_model()), "the default, since it has been pulled")


def offer(config: EngineConfig) -> Entry | None:
    """What to pull where the starter pair answers only because nothing better is there; None where it is not so."""
    return find_entry(REFERENCE) if not config.model and config.target == EngineConfig().target else None


def offer_note(config: EngineConfig) -> str:
    """The same in a clause; "" where there is nothing to offer."""
    entry = offer(config)
    return f"the small starter pair answers; {pull_command(entry.name)} brings a real one" if entry else ""


def pull_command(name: str) -> str:
    """The command that brings a model of the catalogue, and how much that downloads."""
    entry = find_entry(name)
    return f"`codespec models pull {name}`" + (f" ({written(entry.size)})" if entry else "")


def model_name(name: str) -> str:
    """The model's own name, by that or by its hub id. Raises ConfigError for one that is unknown."""
    return name if name in ("", STARTER_NAME) else _pair(name).target


def _merge(
    flags: Mapping[str, Any], file: Path | None, environment: Mapping[str, str] | None
) -> tuple[dict[str, Any], str]:
    """All levels as one, and the place that set `model`.

    A model replaces target and drafter of the levels below it, and a target replaces a model of a level below. On one
    level both hold: the target is that, the drafter is the model's. A drafter replaces a drafter only.
    """
    values: dict[str, Any] = {}
    place = ""
    for level in read_levels(EngineConfig, flags, file, environment):
        if "model" in level.values:
            place = level.place
            values.pop("target", None)
            values.pop("drafter", None)
        elif "target" in level.values:
            values.pop("model", None)
        values.update(level.values)
    return values, place


def _with_pair(values: Mapping[str, Any], name: str) -> EngineConfig:
    """The configuration with what a model's name means where nothing else was set."""
    pair = _pair(name)
    found = {**values, "model": model_name(name)}
    if "target" not in values:
        found["target"] = _on_this_machine(pair.target)
        if pair.dtype and _computes(pair.dtype, found.get("device", "cpu")):
            found.setdefault("dtype", pair.dtype)
    if "drafter" not in values:
        found["drafter"] = _on_this_machine(pair.drafter)
    return make_config(found)


def _pair(name: str) -> Pair:
    """Of the catalogue; a model that was pulled from elsewhere gets the starter pair's drafter, which fits any."""
    if name != STARTER_NAME and find_entry(name) is None and find_pulled(name):
        return Pair(name, EngineConfig().drafter, "")
    return pair_of(name)


def _on_this_machine(name: str) -> str:
    """The name itself. Raises ConfigError for a model of the catalogue that has not been pulled."""
    if find_entry(name) is not None and find_pulled(name) is None:
        raise ConfigError(f"{name} has not been pulled: run {pull_command(name)}.")
    return name


def _computes(dtype: str, device: str) -> bool:
    """Whether a recommended number format is fast where the target runs; `auto` may come to be the processor."""
    return dtype != "bfloat16" or device.startswith("cuda") or computes_bfloat16()
