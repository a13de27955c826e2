"""Fingerprint everything that a measurement depends on, so that a kept result is used only where it is valid."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import torch

from codespec import __version__
from codespec.json_store import digest
from codespec.models.language_model import LanguageModel
from codespec.models.linear import tiled_linears
from codespec.store.processor import processor
from codespec.user_folders import cache_folder


def kept_file(kind: str, version: int, *facts: object) -> Path:
    """Return the file in the user's cache folder that keeps a measurement of this kind.

    Its name is a fingerprint of codespec, the machine, torch, the measurement's version and `facts`, which are plain
    values or objects that differ in `repr`.
    """
    machine = (__version__, platform.node(), processor().label, torch.__version__)
    return cache_folder() / kind / f"{digest((version, *machine, *facts))}.json"


def model_facts(model: LanguageModel) -> tuple[object, ...]:
    """Return the facts that determine the time and the bits of a model's forward, without shape of call and cache.

    These are the CPU threads, the device, the mode, the model's sizes and number formats, and the kinds of its products
    and attention. Models that differ only in name and weights have the same facts.
    """
    gpu = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else ""  # it may be replaced
    spec = replace(model.spec, name="", notes=())
    kinds = {layer.kind for layer in tiled_linears(model.network)}
    return (
        *(torch.get_num_threads(), str(model.device), gpu, model.steps, model.exact, spec, str(model.dtype)),
        *(sorted(model.shapes.items()), sorted(map(repr, model.heads)), sorted(kinds)),
        *sorted(map(repr, model.states.items())),
    )
