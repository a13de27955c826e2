"""Choose how a model calls this processor's kernels so that it is batch-invariant, and keep the choice.

A row's logits, keys and values must be bit-identical for any neighbours, any number of rows per call and any chunking
of its prompt. This depends on the kernels, which differ between processors. So a few shapes are tried, cheapest first,
on every distinct matrix of the model and every kind of attention, and then on whole forwards.

Random numbers hide most differences: rounded to two bytes, sums in two orders differ only once in thousands of cases.
Products and attention are therefore tried on numbers that cancel. Such a sum leaves only the rounding error, so every
row reveals the order of summation (Higham 2002, chapter 4, on summation and cancellation).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from codespec.backends.language_model import LanguageModel
from codespec.backends.torch.attention import ForwardContext, Heads, attend_span
from codespec.backends.torch.call_shape import FAST, HUGE_ROWS, KEY_BLOCK, MAX_ROWS, CallShape, Scoring, Span
from codespec.backends.torch.linear import TiledLinear, tiled_linears
from codespec.backends.torch.model import TorchModel
from codespec.errors import ConfigError
from codespec.files import Kept, parse_json
from codespec.startup.batch_invariance import CHUNK, SAMPLED, find_variance, tried_length
from codespec.startup.timing import kept_file

VERSION = 4  # of the search; results of others are not loaded
FORCED = "CODESPEC_TEST_CALLS"  # for tests: a shape as JSON that exact models use instead of the search result
PRODUCTS = (CallShape(least=2), CallShape(least=8), CallShape(rows=32), CallShape(rows=16))  # cheapest first
# (multiple of query rows, most per call), cheapest for few rows first. Torch's attention splits query rows into blocks
# of 32, 64 or 256; a remainder of one to three rows uses other products on some machines (lab/LOG.md, 2026-11-24).
QUERIES = ((4, 0), (16, 0), (32, 32))
SIZES = (1, 32)
STRICT = CallShape(rows=32, queries=32, max_queries=32)
FIRST_COUNTS = (1, 2, 33, 5, 17)  # rows of products that are compared even after the deadline
COUNTS = tuple(dict.fromkeys((*FIRST_COUNTS, *map(CallShape().computed, range(1, MAX_ROWS + 1)))))
CANCELLED = 200  # keys of a block that are cancelled by the same number of other keys
NOISE = 0.02  # rounding error left in a score: larger than the spacing of two-byte numbers near one
SECONDS = 0.8  # for the products of a model
BAD = (float("nan"), float("inf"), 1e4)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search.

    calls     the shape that is batch-invariant
    variance  which outputs differ in every shape; "" if a shape works
    tried     how much was tested
    """

    calls: CallShape
    variance: str = ""
    tried: str = ""


def choose_calls(model: LanguageModel, notes: MutableSequence[str], chunk: int = CHUNK) -> SearchResult:
    """Apply the kept call shape to a model, or search for one and keep it.

    If an exact model varies in every shape, it becomes inexact and `notes` says so. Slots 0 to 2 must be free.
    """
    assert isinstance(model, TorchModel)
    model.threads = None
    if not model.exact:
        model.use(FAST)
        return SearchResult(FAST)
    if forced := os.environ.get(FORCED, ""):
        found = _tried(model, _read_forced(forced), chunk)
    elif model.device.type != "cpu":  # a device's kernels have only one shape
        found = SearchResult(model.calls, find_variance(model, chunk))
    else:
        file = Kept(kept_file("calls", VERSION, model.facts), "shape of calls", _parse, _spell)
        kept = _kept(model, file, chunk, notes)
        found = kept or settle(model, chunk)
        if kept is None and not found.variance:
            file.save(found, notes)
    if found.variance:
        model.exact, model.variance = False, found.variance
        model.use(FAST)
        notes.append(f"exact mode does not hold here ({found.variance}): fast mode is used, near-ties may differ")
    if model.device.type == "cpu":
        model.threads = torch.get_num_threads()
    return found


def _kept(model: TorchModel, file: Kept[SearchResult], chunk: int, notes: MutableSequence[str]) -> SearchResult | None:
    """Load the kept result and return it if it still holds on a short text."""
    found = file.load(notes)
    if found is None:
        return None
    if variance := _tried(model, found.calls, chunk, SAMPLED).variance:
        notes.append(f"the kept shape of calls no longer holds ({variance}): searching again")
        return None
    return replace(found, tried=f"{found.tried}; on an earlier start")


def _parse(content: Mapping[str, Any]) -> SearchResult:
    return SearchResult(CallShape.from_dict(content["calls"]), tried=str(content["tried"]))


def _spell(found: SearchResult) -> Mapping[str, Any]:
    return {"calls": found.calls.as_dict(), "tried": found.tried}


def _tried(model: TorchModel, calls: CallShape, chunk: int, *length: int) -> SearchResult:
    model.use(calls)
    return SearchResult(calls, find_variance(model, chunk, *length), "forced")


def _read_forced(text: str) -> CallShape:
    try:
        return CallShape.from_dict(parse_json(text.encode()))
    except (ValueError, TypeError) as error:  # JSON errors are ValueErrors
        raise ConfigError(f"{FORCED} = {text!r} is no shape of calls ({error})", "unset it") from error


def settle(model: TorchModel, chunk: int = CHUNK) -> SearchResult:
    """Apply the shape found and check whole forwards, with a stricter shape if they vary, at last FAST (not `exact`).

    Slots 0 to 2 must be free.
    """
    found = find_calls(model, chunk)
    if not found.variance:
        for calls in dict.fromkeys((found.calls, replace(STRICT, sizes=found.calls.sizes))):
            model.use(calls)
            variance = find_variance(model, chunk)
            if not variance:
                return SearchResult(calls, "", f"{found.tried}; {tried_length(model)} tokens in chunks")
            found = replace(found, variance=variance)
    model.use(FAST)
    model.exact = False
    return replace(found, calls=FAST)


def find_calls(model: TorchModel, chunk: int = CHUNK, seconds: float = SECONDS) -> SearchResult:
    """Return the cheapest shape in which the model's products and attention are batch-invariant.

    Tests products for about `seconds`. Needs no slots and leaves the model's own shape unchanged.
    """
    layers = list({layer.kind: layer for layer in tiled_linears(model.network)}.values())
    kinds = sorted(model.heads, key=lambda heads: (heads.size, heads.window)) if model.steps == "spans" else []
    trial = Trial(model, chunk)
    layers.sort(key=lambda layer: layer.nbytes)
    tried = [layer if layer.is_huge else _cancelling(trial, layer) for layer in layers]
    products = next((calls for calls in PRODUCTS if not _product_varies(trial, tried, calls, seconds)), None)
    shapes = [CallShape(queries=unit, max_queries=most, sizes=sizes) for sizes in SIZES for unit, most in QUERIES]
    attention = next((s for s in shapes if not any(_attention_varies(trial, heads, s) for heads in kinds)), None)
    for layer in layers:
        layer.calls = model.calls
    if products is None or attention is None:
        what = "a row of the products" if products is None else "a row of the attention"
        return SearchResult(FAST, f"{what} of {model.spec.architecture} depends on the other rows ({model.spec.dtype})")
    found = [f"{len(layers)} kinds of products"] if layers else []
    found += ["native products, which need no trial"] if model.spec.dtype == "native" else []
    calls = replace(attention, rows=products.rows, least=products.least)
    return SearchResult(calls, tried=f"{', '.join(found)}, {len(model.heads)} of attention")


class Trial:
    """A model under test, and a source of random numbers."""

    def __init__(self, model: TorchModel, chunk: int) -> None:
        self.model, self.chunk = model, min(chunk, KEY_BLOCK - 8)
        self._generator = torch.Generator().manual_seed(0)

    def draw(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return normal random values in `dtype` (default: the model's) and on the model's device."""
        return torch.randn(*sizes, generator=self._generator).to(self.model.device, dtype or self.model.dtype)


# Products


def _cancelling(trial: Trial, layer: TiledLinear) -> TiledLinear:
    """Return a layer of the same shape whose second half of inputs cancels the products of the first half."""
    half = layer.in_features // 2
    drawn = trial.draw(layer.out_features, half, dtype=layer.dtype)
    weight = torch.cat([drawn, -drawn, drawn.new_zeros(layer.out_features, layer.in_features - 2 * half)], dim=1)
    bias = None if layer.bias is None else torch.zeros_like(layer.bias)
    return TiledLinear(weight, bias, CallShape(), packed=layer.packed is not None)


def _product_varies(trial: Trial, layers: list[TiledLinear], calls: CallShape, seconds: float) -> bool:
    """Return whether a row's bits depend on the other rows of its call, in one of these matrices."""
    tries = []
    for layer in layers:
        layer.calls = calls
        rows = trial.draw(HUGE_ROWS if layer.is_huge else MAX_ROWS, layer.in_features, dtype=layer.dtype)
        half = layer.in_features // 2
        rows[:, half : 2 * half] = rows[:, :half]
        tries.append((layer, rows, layer(rows)))
    if any(_varies_by_place(layer, rows, whole) for layer, rows, whole in tries):
        return True
    deadline = time.perf_counter() + seconds
    for count in COUNTS:
        for layer, rows, whole in tries:
            if count <= len(rows) and not torch.equal(layer(rows[:count]), whole[:count]):
                return True
        if count not in FIRST_COUNTS and time.perf_counter() > deadline:
            break
    return False


def _varies_by_place(layer: TiledLinear, rows: Tensor, whole: Tensor) -> bool:
    """Return whether a row's bits depend on its place, or on huge or NaN neighbours."""
    alike = layer(rows[:1].expand(len(rows), -1).contiguous())
    same = torch.equal(alike, whole[:1].expand(len(rows), -1)) and torch.equal(layer(rows.flip(0)).flip(0), whole)
    if not same or any(not torch.equal(layer(rows[first:]), whole[first:]) for first in (1, len(rows) - 3)):
        return True
    for place, bad in zip((3, 0, 7), BAD, strict=True):
        beside = torch.full_like(rows[:8], bad)
        beside[place] = rows[place]
        if not torch.equal(layer(beside)[place], whole[place]):
            return True
    return False


# Attention


def _attention_varies(trial: Trial, heads: Heads, calls: CallShape) -> bool:
    """Return whether a row's bits depend on the other rows of its call.

    Tests verifications, prompt chunks and NaN neighbours, over one to four blocks of keys.
    """
    most = min(4, max(1, trial.model.spec.max_length // KEY_BLOCK))
    tries = [_Attended(trial, heads, calls, cancels_scores=scores) for scores in (True, False)]
    return any(not same for one in tries for block in range(1, most + 1) for same in one.compared(block))


class _Attended:
    """Random queries, keys and values. The sums of the scores or of the values cancel."""

    def __init__(self, trial: Trial, heads: Heads, calls: CallShape, *, cancels_scores: bool) -> None:
        self.heads, self.calls, self.chunk = heads, calls, trial.chunk
        length = 4 * KEY_BLOCK
        self.queries = trial.draw(heads.kv_heads, heads.groups, length, heads.size)
        self.keys = trial.draw(heads.kv_heads, length, heads.size)
        self.values = trial.draw(heads.kv_heads, length, heads.value_size)
        self.sinks = trial.draw(heads.kv_heads * heads.groups) if heads.sinks else None
        half = heads.size // 2
        if cancels_scores:  # every score is a sum of large products and their negatives
            large = math.sqrt(NOISE * 2**24 / (heads.scale * math.sqrt(half)))
            self.keys *= large
            self.keys[..., half : 2 * half] = self.keys[..., :half]
            self.queries *= large
            self.queries[..., half : 2 * half] = -self.queries[..., :half]
            self.queries[..., 2 * half :] = 0
        else:  # all visible keys have the same weight, and their values sum to zero
            self.queries.zero_()
            blocks = self.values.unflatten(1, (-1, KEY_BLOCK))
            blocks[:, :, CANCELLED : 2 * CANCELLED] = -blocks[:, :, :CANCELLED]
            blocks[:, :, 2 * CANCELLED :] = 0

    def compared(self, block: int) -> Iterator[bool]:
        """Compare the rows at the end of a block with a whole chunk: in the first block, with every remainder of the
        kernel's blocks of rows.
        """
        end, chunk = block * KEY_BLOCK - 8, self.chunk
        whole = self._attend(end - chunk, chunk)
        counts = (*range(1, 41), *range(48, chunk, 7)) if block == 1 else (1, 2, 3, 5, 8, 17, 33, 65, 100, chunk - 1)
        for rows in (rows for rows in counts if rows < chunk):
            yield torch.equal(self._attend(end - rows, rows), whole[:, -rows:])
        yield torch.equal(self._attend(end - chunk, 16), whole[:, :16])
        plain = self.queries
        self.queries = torch.full_like(plain, float("nan"))
        self.queries[..., end - 5, :] = plain[..., end - 5, :]
        yield torch.equal(self._attend(end - 8, 8)[:, 3], whole[:, -5])
        self.queries = plain

    def _attend(self, start: int, count: int) -> Tensor:
        """Attend `count` rows from position `start` on -> [heads, count, value_size]."""
        heads, length = self.heads, start + count
        query = self.queries[:, :, start:length].reshape(heads.kv_heads, heads.groups * count, heads.size)
        end = length + -length % self.calls.keys
        scoring = Scoring(heads.scale, heads.window, heads.softcap, self.sinks)
        context, span = ForwardContext([], None, self.calls), Span(0, start, 0, count)
        out = attend_span(context, span, query, self.keys[:, :end], self.values[:, :end], scoring)
        return out.reshape(heads.kv_heads * heads.groups, count, heads.value_size)
