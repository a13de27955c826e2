"""Choose how a model calls this processor's kernels, so that exact mode holds: search once, and keep the result.

The shape of a call comes from `codespec.startup.call_search`. A model that varies in every shape runs in fast mode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableSequence
from dataclasses import replace
from typing import Any

import torch

from codespec.backends.language_model import LanguageModel
from codespec.backends.torch.call_shape import FAST, CallShape
from codespec.backends.torch.linear import large_kinds, measure_least_rows, tiled_linears
from codespec.backends.torch.model import TorchModel
from codespec.errors import ConfigError
from codespec.files import Kept, parse_json
from codespec.startup.batch_invariance import CHUNK, SAMPLED, find_variance
from codespec.startup.call_search import SearchResult, settle
from codespec.startup.timing import kept_file

VERSION = 3  # of the search; results of others are not loaded
FORCED = "CODESPEC_TEST_CALLS"  # for tests: a shape as JSON that exact models use instead of the search result


def choose_calls(model: LanguageModel, notes: MutableSequence[str], chunk: int = CHUNK) -> SearchResult:
    """Apply the cached call shape to a model, or search for one and cache it.

    If an exact model varies in every shape, it becomes inexact and `notes` says so. Slots 0 to 2 must be free.
    """
    assert isinstance(model, TorchModel)
    model.threads = None
    forced = os.environ.get(FORCED, "")
    if forced and model.exact:
        found = _tried(model, _read_forced(forced), chunk)
    else:
        file = Kept(kept_file("calls", VERSION, model.facts), "shape of calls", _parse, _spell)
        found = _kept(model, file, chunk, notes) or _find(model, file, chunk, notes)
    if found.variance:
        model.exact, model.variance = False, found.variance
        model.use(FAST)
        notes.append(f"exact mode does not hold here ({found.variance}): fast mode is used, near-ties may differ")
    if model.device.type == "cpu":
        model.threads = torch.get_num_threads()
    return found


def fast_calls(model: TorchModel) -> CallShape:
    """Return FAST with the minimum row count that is fastest here, or FAST itself for a small model."""
    large = large_kinds(tiled_linears(model.network))
    return replace(FAST, least=measure_least_rows(large, 1)) if large else FAST


def _kept(model: TorchModel, file: Kept[SearchResult], chunk: int, notes: MutableSequence[str]) -> SearchResult | None:
    """Load the kept result and return it if it still holds on a short text."""
    found = file.load(notes)
    if found is None:
        return None
    if not model.exact:
        model.use(found.calls)
        return found
    again = _tried(model, found.calls, chunk, SAMPLED)
    if again.variance:
        notes.append(f"the kept shape of calls no longer holds ({again.variance}): searching again")
        return None
    return replace(found, tried=f"{found.tried}; on an earlier start")


def _find(model: TorchModel, file: Kept[SearchResult], chunk: int, notes: MutableSequence[str]) -> SearchResult:
    """Search for a shape and keep it. A device's kernels, and a small model in fast mode, have only one."""
    if model.exact and model.device.type != "cpu":
        return SearchResult(model.calls, find_variance(model, chunk))
    if model.exact:
        found = settle(model, chunk)
    else:
        found = SearchResult(fast_calls(model))
        model.use(found.calls)
    if not found.variance and found.calls is not FAST:
        file.save(found, notes)
    return found


def _parse(content: Mapping[str, Any]) -> SearchResult:
    return SearchResult(CallShape.from_dict(content["calls"]), tried=str(content["tried"]))


def _spell(found: SearchResult) -> Mapping[str, Any]:
    return {"calls": found.calls.as_dict(), "tried": found.tried}


def _tried(model: TorchModel, calls: CallShape, chunk: int, length: int | None = None) -> SearchResult:
    model.use(calls)
    variance = find_variance(model, chunk) if length is None else find_variance(model, chunk, length)
    return SearchResult(calls, variance, "forced")


def _read_forced(text: str) -> CallShape:
    try:
        return CallShape.from_dict(parse_json(text.encode()))
    except (ValueError, TypeError) as error:  # JSON errors are ValueErrors
        raise ConfigError(f"{FORCED} = {text!r} is no shape of calls ({error})", "unset it") from error
