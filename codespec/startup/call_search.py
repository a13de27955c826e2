"""Search for the cheapest call shape that makes a model batch-invariant on this processor.

A row's logits, keys and values must be bit-identical for any neighbours, any number of rows per call and any chunking
of its prompt. This depends on the kernels, which differ between processors. The search therefore tests every distinct
matrix of the model and every kind of attention, and then whole forwards.

Random numbers hide most differences: rounded to two bytes, sums in two orders differ only once in thousands of cases.
Products and attention are therefore also tested on numbers that cancel. Such a sum leaves only the rounding error, so
every row reveals the order of summation (Higham 2002, chapter 4, on summation and cancellation).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from codespec.backends.torch.attention import ForwardContext, Heads, attend_group
from codespec.backends.torch.call_shape import FAST, KEY_BLOCK, CallShape
from codespec.backends.torch.grouping import Group, Scoring, Span
from codespec.backends.torch.linear import TiledLinear, large_kinds, measure_least_rows, tiled_linears
from codespec.backends.torch.model import TorchModel
from codespec.startup.batch_invariance import CHUNK, find_variance, tried_length
from codespec.startup.timing import timed

TILES = (16, 32, 64, 128)  # rows per product call, if not every number is batch-invariant
MAX_LEAST = 8  # the largest number of rows to which every product may be padded instead
# (multiple of query rows, most per call), cheapest for few rows first. Torch's attention splits query rows into blocks
# of 32, 64 or 256; a remainder of one to three rows uses other products on some machines (lab/LOG.md, 2026-11-24).
QUERIES = (
    *((unit, 0) for unit in (2, 4, 8, 16, 32)),
    *((unit, 32) for unit in (4, 8, 16)),
    *((unit, unit) for unit in (8, 16, 32)),
)
SIZES = (1, 32)
FIRST_COUNTS = (1, 2, 33, 5, 17)  # tested with every matrix, even after the deadline
COUNTS = tuple(dict.fromkeys((*FIRST_COUNTS, 100, 3, 64, 128, 4, 8, 9, 16, 48, 256, 512, *range(1, 97), 192)))
# Minimum number of random results to compare: rounded to two bytes, sums in two orders differ in about one of 10,000.
COMPARED = {4: 512, 2: 60_000}
CANCELLED = 200  # keys of a block that are cancelled by the same number of other keys
NOISE = 0.02  # rounding error left in a score: larger than the spacing of two-byte numbers near one
SECONDS = 0.8  # time limit for the products of a model; the finding reports how many tests were run
PROMPT, STEPS = 512, 16  # prefill rows and decode steps of a typical completion: the weights of a tile's time
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


@dataclass(slots=True)
class Trial:
    """State of one search. `counts` is the number of row counts that each kind of matrix was tested with."""

    model: TorchModel
    chunk: int
    deadline: float
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    counts: int = len(COUNTS)

    def draw(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return normal random values in `dtype` (default: the model's) and on the model's device."""
        return torch.randn(*sizes, generator=self.generator).to(self.model.device, dtype or self.model.dtype)


def find_calls(model: TorchModel, chunk: int = CHUNK, seconds: float = SECONDS) -> SearchResult:
    """Return the cheapest shape in which the model's products and attention are batch-invariant.

    Tests products for about `seconds`. Needs no slots and leaves the model's own shape unchanged.
    """
    before = model.calls
    trial = Trial(model, chunk, time.perf_counter() + seconds)
    try:
        products = _find_products(trial)
        attention = _find_queries(trial) if model.steps == "spans" else CallShape(queries=4)
    finally:
        model.use(before)
    if products is None or attention is None:
        what = "a row of the products" if products is None else "a row of the attention"
        variance = f"{what} of {model.spec.architecture} depends on the other rows ({model.spec.dtype})"
        return SearchResult(FAST, variance)
    kinds = {layer.kind for layer in tiled_linears(model.network)}
    counts = f"{trial.counts} of {len(COUNTS)} numbers of rows" if not products.rows else "whole tiles"
    found = [f"{len(kinds)} kinds of products with {counts}"] if kinds else []
    found += ["native products, which need no trial"] if model.spec.dtype == "native" else []
    tried = f"{', '.join(found)}, {len(model.heads)} of attention"
    calls = replace(products, queries=attention.queries, max_queries=attention.max_queries, sizes=attention.sizes)
    return SearchResult(calls, tried=tried)


def settle(model: TorchModel, chunk: int = CHUNK, seconds: float = SECONDS) -> SearchResult:
    """Apply the shape found and check whole forwards, with stricter shapes if they vary, at last FAST (not `exact`).

    Slots 0 to 2 must be free.
    """
    found = find_calls(model, chunk, seconds)
    if not found.variance:
        own = found.calls
        padded = replace(own, least=max(2, own.least), queries=max(4, own.queries))
        strict = replace(own, rows=own.rows or 32, queries=32, max_queries=32)
        for calls in dict.fromkeys((own, padded, strict)):
            model.use(calls)
            variance = find_variance(model, chunk)
            if not variance:
                tried = f"{found.tried}; {tried_length(model)} tokens in chunks"
                return replace(found, calls=calls, variance="", tried=tried)
            found = replace(found, variance=variance)
    model.use(FAST)
    model.exact = False
    return replace(found, calls=FAST)


def _find_products(trial: Trial) -> CallShape | None:
    layers = list({layer.kind: layer for layer in tiled_linears(trial.model.network)}.values())
    layers.sort(key=lambda layer: layer.nbytes)
    least = _min_rows(trial, layers)
    if least:
        return CallShape(least=measure_least_rows(large_kinds(tiled_linears(trial.model.network)), least))
    for rows in _tiles_by_time(trial, layers):
        calls = CallShape(rows=rows)
        if not any(_varies_in_call(trial, layer, calls, rows) for layer in layers):
            return calls
    return None


def _min_rows(trial: Trial, layers: Sequence[TiledLinear]) -> int:
    """Return the smallest number of rows from which a row's bits don't depend on the number; 0 if there is none."""
    tries = [_CountTrial(trial, layer) for layer in layers]
    for number, count in enumerate(COUNTS):
        for tried in tries:
            if count <= tried.most:
                tried.compare(count)
        if any(tried.place_varies or max(tried.differing, default=0) > MAX_LEAST for tried in tries):
            return 0
        if number >= len(FIRST_COUNTS) and time.perf_counter() > trial.deadline:
            trial.counts = number + 1
            break
    least = 1 + max((max(tried.differing, default=0) for tried in tries), default=0)
    calls = CallShape(least=least)
    wide = [(layer, count) for layer in layers for count in ((4,) if layer.is_huge else (8, 33))]
    return 0 if any(_varies_in_call(trial, layer, calls, count) for layer, count in wide) else least


class _CountTrial:
    """Products of one matrix (or of cancelling numbers in its shape) with different numbers of rows, compared."""

    def __init__(self, trial: Trial, layer: TiledLinear) -> None:
        self.layer, self.cancels = (layer, False) if layer.is_huge else (_cancelling(trial, layer), True)
        self.most = CallShape().max_rows(layer.is_huge)
        self.differing: set[int] = set()
        self._rows = trial.draw(self.most, layer.in_features, dtype=layer.dtype)
        if self.cancels:
            half = layer.in_features // 2
            self._rows[:, half : 2 * half] = self._rows[:, :half]
        self._whole = _product(self.layer, CallShape(), self._rows)
        alike = _product(self.layer, CallShape(), self._rows[:1].expand(self.most, -1).contiguous())
        self.place_varies = not torch.equal(alike, self._whole[:1].expand(self.most, -1))

    def compare(self, count: int) -> None:
        """Add `count` to `differing` if a product of `count` rows has other bits than one of all rows."""
        enough = 1 if self.cancels else COMPARED[self.layer.dtype.itemsize] // self.layer.out_features
        for start in range(0, min(max(1, enough), self.most - count + 1), count):
            rows = slice(start, start + count)
            if not torch.equal(_product(self.layer, CallShape(), self._rows[rows]), self._whole[rows]):
                self.differing.add(count)
                return


def _cancelling(trial: Trial, layer: TiledLinear) -> TiledLinear:
    """Return a layer of the same shape whose second half of inputs cancels the products of the first half."""
    half = layer.in_features // 2
    drawn = trial.draw(layer.out_features, half, dtype=layer.dtype)
    weight = torch.cat([drawn, -drawn, drawn.new_zeros(layer.out_features, layer.in_features - 2 * half)], dim=1)
    bias = None if layer.bias is None else torch.zeros_like(layer.bias)
    return TiledLinear(weight, bias, CallShape(), packed=layer.packed is not None)


def _varies_in_call(trial: Trial, layer: TiledLinear, calls: CallShape, count: int) -> bool:
    """Return whether a row's bits depend on its index among `count`, its padding, or huge or NaN neighbours."""
    drawn = trial.draw(count + 1, layer.in_features, dtype=layer.dtype)
    rows, more = drawn[:count], drawn[count:]
    whole = _product(layer, calls, rows)
    alike = _product(layer, calls, rows[:1].expand(count, -1).contiguous())
    if not torch.equal(alike, whole[:1].expand(count, -1)):
        return True
    if not torch.equal(_product(layer, calls, rows.flip(0)).flip(0), whole):
        return True
    if calls.rows:
        fewer = (1, 2, count // 2, count - 1)
        if any(not torch.equal(_product(layer, calls, rows[:number]), whole[:number]) for number in fewer):
            return True
        if not torch.equal(_product(layer, calls, torch.cat([more, rows]))[1:], whole):
            return True
    for number, bad in enumerate(BAD):
        place = (number * 7 + count // 2) % count
        beside = torch.full_like(rows, bad)
        beside[place] = rows[place]
        if not torch.equal(_product(layer, calls, beside)[place], whole[place]):
            return True
    return False


def _product(layer: TiledLinear, calls: CallShape, rows: Tensor) -> Tensor:
    layer.calls = calls
    out: Tensor = layer(rows)
    return out


def _tiles_by_time(trial: Trial, layers: Sequence[TiledLinear]) -> list[int]:
    """Return TILES in order of total time for a prefill and its decode steps, fastest first."""
    every = tiled_linears(trial.model.network)
    head = max(layers, key=lambda layer: layer.out_features, default=None)
    taken = dict.fromkeys(TILES, 0.0)
    for layer in layers:
        times = sum(other.kind == layer.kind for other in every)
        for tile in TILES:
            rows = trial.draw(tile, layer.in_features + layer.missing, dtype=layer.dtype)
            layer.multiply(rows)
            seconds = min(timed(partial(layer.multiply, rows)) for _ in range(3))
            calls = STEPS + (0 if layer is head else PROMPT // tile)
            taken[tile] += times * calls * seconds
    return sorted(TILES, key=taken.__getitem__)


# Attention


def _find_queries(trial: Trial) -> CallShape | None:
    kinds = sorted(trial.model.heads, key=lambda heads: (heads.size, heads.window))
    odd = any(heads.size % SIZES[-1] for heads in kinds)
    for sizes in SIZES if odd else SIZES[:1]:
        for queries, most in QUERIES:
            calls = CallShape(queries=queries, max_queries=most, sizes=sizes)
            if not any(_attention_varies(trial, heads, calls) for heads in kinds):
                return calls
    return None


def _attention_varies(trial: Trial, heads: Heads, calls: CallShape) -> bool:
    """Return whether a row's bits depend on the other rows of its call.

    Tests verifications of 1…8 rows and more, prompt chunks, several texts per call and NaN neighbours, over one to four
    blocks of keys.
    """
    attended = _Attended(trial, heads, calls)
    most = min(4, max(1, trial.model.spec.max_length // KEY_BLOCK))
    cancelling = (_Attended(trial, heads, calls, cancels=what) for what in ("scores", "values"))
    return any(not same for one in cancelling for same in one.left_over()) or any(
        not same
        for block in range(1, most + 1)
        for same in (*attended.verified(block), *attended.chunks(block), *attended.together(block))
    )


class _Attended:
    """Random queries, keys and values attended in one call shape. `cancels`: sums that leave only rounding error."""

    def __init__(
        self, trial: Trial, heads: Heads, calls: CallShape, cancels: Literal["", "scores", "values"] = ""
    ) -> None:
        self.heads, self.calls, self.chunk = heads, calls, min(trial.chunk, KEY_BLOCK - 8)
        length = 4 * KEY_BLOCK
        self.queries = trial.draw(3, heads.kv_heads, heads.groups, length, heads.size)
        self.keys = trial.draw(3, heads.kv_heads, length, heads.size)
        self.values = trial.draw(3, heads.kv_heads, length, heads.value_size)
        self.sinks = trial.draw(heads.kv_heads * heads.groups) if heads.sinks else None
        # Enough heads for one row to yield the minimum number of results; they share one head's keys.
        self.many = max(1, COMPARED[trial.model.dtype.itemsize] // 2 // (heads.groups * heads.value_size))
        self.several = trial.draw(self.many, heads.groups, 32, heads.size)
        if cancels:
            self.many, self.several = 1, trial.draw(1, heads.groups, 72, heads.size)
        if cancels == "scores":
            self._cancel_scores()
        elif cancels == "values":
            self._cancel_values()

    def _cancel_scores(self) -> None:
        """Make every score a sum of large products that cancel, so that another order of summation shows."""
        half = self.heads.size // 2
        large = math.sqrt(NOISE * 2**24 / (self.heads.scale * math.sqrt(half)))
        self.keys *= large
        self.keys[..., half : 2 * half] = self.keys[..., :half]
        for queries in (self.queries, self.several):
            queries *= large
            queries[..., half : 2 * half] = -queries[..., :half]
            queries[..., 2 * half :] = 0

    def _cancel_values(self) -> None:
        """Give all visible keys the same weight and make their values sum to zero."""
        for queries in (self.queries, self.several):
            queries.zero_()
        blocks = self.values.unflatten(2, (-1, KEY_BLOCK))
        blocks[:, :, :, CANCELLED : 2 * CANCELLED] = -blocks[:, :, :, :CANCELLED]
        blocks[:, :, :, 2 * CANCELLED :] = 0

    def left_over(self) -> Iterator[bool]:
        """Compare 1…40 rows, and many sizes of a prompt's chunk, to cover every remainder of the kernel's blocks."""
        start = KEY_BLOCK - 80
        whole = self._several(start, slice(0, 72), 1)
        for rows in range(1, 41):
            yield torch.equal(self._several(start, slice(0, rows), 1), whole[:, :, :rows])
        start = KEY_BLOCK - self.chunk
        whole = self._attend((0, start, self.chunk))
        for rows in range(48, self.chunk, 7):
            behind = self.chunk - rows
            yield torch.equal(self._attend((0, start + behind, rows)), whole[:, :, behind:])

    def verified(self, block: int) -> Iterator[bool]:
        """Compare 1…8 rows and more at the end of a block with 32 rows; fewer rows use more heads."""
        start = block * KEY_BLOCK - 40
        many = self.many if block == 1 else 1
        whole = self._several(start, slice(0, 32), many)
        for rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 17, 24, 31):
            few = -(-many // rows)
            yield torch.equal(self._several(start, slice(0, rows), few), whole[:few, :, :rows])
        yield torch.equal(self._several(start, slice(3, 8), many), whole[:, :, 3:8])
        beside = torch.full_like(self.several, float("nan"))
        beside[:, :, 3] = self.several[:, :, 3]
        yield torch.equal(self._several(start, slice(0, 8), many, beside)[:, :, 3], whole[:, :, 3])

    def chunks(self, block: int) -> Iterator[bool]:
        """Compare a prompt's rows in smaller chunks with the largest chunk."""
        start = block * KEY_BLOCK - self.chunk
        whole = self._attend((0, start, self.chunk))
        for rows in (self.chunk - 1, 100, 65, 8):
            if rows < self.chunk:
                behind = self.chunk - rows
                yield torch.equal(self._attend((0, start + behind, rows)), whole[:, :, behind:])
        yield torch.equal(self._attend((0, start, 16)), whole[:, :, :16])

    def together(self, block: int) -> Iterator[bool]:
        """Compare each of three texts attended in one call with the same text attended alone."""
        if self.heads.eager:
            return
        parts = tuple((slot, block * KEY_BLOCK - 50 + 7 * slot, rows) for slot, rows in enumerate((1, 4, 2)))
        together = self._attend(*parts)
        for number, (slot, start, rows) in enumerate(parts):
            alone = self._attend((slot, start, rows))
            yield torch.equal(together[number : number + 1, :, :rows], alone)

    def _several(self, start: int, rows: slice, many: int, queries: Tensor | None = None) -> Tensor:
        """Attend `rows` of `several`'s first `many` heads, row 0 at `start` -> [many, groups, rows, value_size]."""
        heads, count = self.heads, rows.stop - rows.start
        group = Group.of(Span(0, start + rows.start, 0, count))
        query = (self.several if queries is None else queries)[:many, :, rows]
        end = group.length + -group.length % self.calls.keys
        keys, values = (part[:1, :1, :end].expand(-1, many, -1, -1) for part in (self.keys, self.values))
        sinks = None if self.sinks is None else self.sinks[: heads.groups].repeat(many)
        out = attend_group(
            ForwardContext([], None, self.calls), group, query.reshape(1, many, heads.groups * count, heads.size),
            keys, values, Scoring(heads.scale, heads.window, heads.softcap, sinks),
        )  # fmt: skip
        return out.reshape(many, heads.groups, count, heads.value_size)

    def _attend(self, *parts: tuple[int, int, int]) -> Tensor:
        """Attend (slot, start, rows) of each text in one call -> [texts, heads, rows, value_size]."""
        heads, rows = self.heads, max(count for _, _, count in parts)
        group = Group.of(*(Span(slot, start, 0, count) for slot, start, count in parts))
        drawn = [self.queries[slot, :, :, start : start + rows] for slot, start, _ in parts]
        for number, (_, _, count) in enumerate(parts):  # pad with the text's last row
            drawn[number] = torch.cat([drawn[number][:, :, :count], drawn[number][:, :, count - 1 : count].expand(
                -1, -1, rows - count, -1
            )], dim=2)  # fmt: skip
        query = torch.stack(drawn).reshape(len(parts), heads.kv_heads, heads.groups * rows, heads.size)
        slots, end = slice(parts[0][0], parts[0][0] + len(parts)), group.length + -group.length % self.calls.keys
        context = ForwardContext([], None, self.calls)
        out = attend_group(
            context, group, query, self.keys[slots, :, :end], self.values[slots, :, :end],
            Scoring(heads.scale, heads.window, heads.softcap, self.sinks),
        )  # fmt: skip
        return out.reshape(len(parts), heads.kv_heads * heads.groups, rows, heads.value_size)
