"""Which target and drafter the settings mean: `model` chooses both, `target` and `drafter` one each, and nothing means
the best pair on this machine.

Knows how the three settings overrule each other, what is pulled and what the processor computes. Fetches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.catalogue.disk import written
from codespec.catalogue.entries import OWN_DRAFTER, Entry, find_entry, read_catalogue
from codespec.catalogue.store import find_pulled
from codespec.config import STARTER, EngineConfig, make_config, read_levels
from codespec.errors import ConfigError
from codespec.model_folders.machine import computes_bfloat16

STARTER_NAME, REFERENCE = "starter", "smollm2-135m"


@dataclass(frozen=True, slots=True)
class NamedPair:
    """What a model's name means: target and drafter as EngineConfig takes them, and the target's recommended number
    format ("": the default).
    """

    target: str
    drafter: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and in a few words why it has its target and drafter."""

    config: EngineConfig
    why: str


def resolve(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> EngineConfig:
    """The configuration from a TOML file (by default the user's own), then CODESPEC_* variables, then flags that are
    not None; the later wins.

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


def default_model() -> str:
    """The model where nothing is chosen: the reference pair if it has been pulled, else the starter pair."""
    return REFERENCE if find_pulled(REFERENCE) else STARTER_NAME


def named_pair(name: str) -> NamedPair:
    """The pair that a catalogue name, its hub id or "starter" means. Raises ConfigError for other names."""
    if name == STARTER_NAME:
        return NamedPair(str(STARTER / "target"), str(STARTER / "drafter"), "")
    entry = find_entry(name)
    if entry is None:
        raise ConfigError(f"model = {name!r} is not one of {', '.join(known_names())}.")
    drafter = str(STARTER / "drafter") if entry.drafter == OWN_DRAFTER else entry.drafter
    return NamedPair(entry.name, drafter, entry.dtype)


def known_names() -> list[str]:
    """The names that `named_pair` knows."""
    return [STARTER_NAME, *read_catalogue()]


def offer(config: EngineConfig) -> Entry | None:
    """The model to suggest pulling, where the starter pair runs only because nothing better is here; else None."""
    return find_entry(REFERENCE) if not config.model and config.target == EngineConfig().target else None


def offer_note(config: EngineConfig) -> str:
    """The same as a clause for the user; "" where there is nothing to offer."""
    entry = offer(config)
    return f"the small starter pair answers; {pull_command(entry.name)} brings a real one" if entry else ""


def pull_command(name: str) -> str:
    """The command that pulls a model of the catalogue, and the size of the download."""
    entry = find_entry(name)
    return f"`codespec models pull {name}`" + (f" ({written(entry.size)})" if entry else "")


def model_name(name: str) -> str:
    """The model's own name, given that or its hub id. Raises ConfigError for an unknown one."""
    return name if name in ("", STARTER_NAME) else _pair(name).target


def _merge(
    flags: Mapping[str, Any], file: Path | None, environment: Mapping[str, str] | None
) -> tuple[dict[str, Any], str]:
    """All levels merged, and the place that set `model`.

    A model replaces target and drafter of the levels below, and a target replaces a model of a level below. On the same
    level both hold: the target as given, the drafter of the model. A drafter replaces only a drafter.
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
    """The configuration with what a model's name means, except where something else was set."""
    pair = _pair(name)
    found = {**values, "model": model_name(name)}
    if "target" not in values:
        found["target"] = _on_this_machine(pair.target)
        if pair.dtype and _computes(pair.dtype, found.get("device", "cpu")):
            found.setdefault("dtype", pair.dtype)
    if "drafter" not in values:
        found["drafter"] = _on_this_machine(pair.drafter)
    return make_config(found)


def _pair(name: str) -> NamedPair:
    """As `named_pair`, but a model pulled from elsewhere gets the starter pair's drafter, which fits any."""
    if name != STARTER_NAME and find_entry(name) is None and find_pulled(name):
        return NamedPair(name, EngineConfig().drafter, "")
    return named_pair(name)


def _on_this_machine(name: str) -> str:
    """The name itself. Raises ConfigError for a model of the catalogue that has not been pulled."""
    if find_entry(name) is not None and find_pulled(name) is None:
        raise ConfigError(f"{name} has not been pulled: run {pull_command(name)}.")
    return name


def _computes(dtype: str, device: str) -> bool:
    """Whether a recommended number format is fast where the target runs; `auto` may turn out to be the processor."""
    return dtype != "bfloat16" or device.startswith("cuda") or computes_bfloat16()
