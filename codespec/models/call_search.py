"""Finds the cheapest shape of call that makes a model batch-invariant on this processor, by trying.

A row's logits, keys and values must not change by a bit with its neighbours, with the number of rows computed at once,
or with the chunks of its prompt. Kernels decide that and differ from processor to processor, so nothing is assumed:
every different matrix of the model and every kind of its attention is tried, and then whole forwards. Knows one model;
knows no requests and keeps nothing.

Random numbers hide most of what differs: rounded to two bytes, two orders of a sum agree but for one in thousands. So
products and attention are also tried on numbers that cancel. Nothing but the rounding is left of such a sum, and every
row shows in which order it was made (Higham 2002, chapter 4, on summation and cancellation).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from codespec.models.attention import ForwardContext, Heads, attend_group
from codespec.models.batch_invariance import CHUNK, find_variance, tried_length
from codespec.models.call_shape import FAST, KEY_BLOCK, CallShape
from codespec.models.int8.linear import integer_kernels
from codespec.models.language_model import LanguageModel
from codespec.models.linear import TiledLinear, large_kinds, measure_least_rows, tiled_linears
from codespec.models.span_groups import Group, Span

TILES = (16, 32, 64, 128)  # rows of a product's call, where not every number will do
MOST_LEAST = 8  # rows up to which every product may be padded instead
# A multiple of query rows, and the most of a call: by what few rows cost. Torch's attention takes query rows by 32, 64
# or 256, and one to three that are left over go through other products on some machines (lab/LOG.md, 2026-11-24).
QUERIES = (
    *((unit, 0) for unit in (2, 4, 8, 16, 32)),
    *((unit, 32) for unit in (4, 8, 16)),
    *((unit, unit) for unit in (8, 16, 32)),
)
SIZES = (1, 32)
FIRST_COUNTS = (1, 2, 33, 5, 17)  # tried with the largest matrix too, whatever it takes
COUNTS = tuple(dict.fromkeys((*FIRST_COUNTS, 100, 3, 64, 128, 4, 8, 9, 16, 48, 256, 512, *range(1, 97), 192)))
# The least random numbers compared: rounded to two bytes, two orders of a sum differ in about one of 10,000.
COMPARED = {4: 512, 2: 60_000}
CANCELLED = 200  # keys of a block that are cancelled by as many others
NOISE = 0.02  # what rounding leaves of a score: more than the steps between numbers of two bytes near one
SECONDS = 0.8  # for the products of a model; the finding says what was not tried by then
PROMPT, STEPS = 512, 16  # rows read for each completion, and its steps: what a tile's time is weighed by
BAD = (float("nan"), float("inf"), 1e4)


@dataclass(frozen=True, slots=True)
class Finding:
    """The shape that works, or `variance`: what differs in every shape. `kernel` says that a library's kernel varies by
    itself, where other instructions may help. `tried` says how much was tried.
    """

    calls: CallShape
    variance: str = ""
    tried: str = ""
    kernel: bool = False


@dataclass(slots=True)
class Trial:
    """One search over a model. `counts` is how many numbers of rows each kind of matrix was tried with, at least."""

    model: LanguageModel
    chunk: int
    deadline: float
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    counts: int = len(COUNTS)

    def draw(self, *sizes: int) -> Tensor:
        """Random values in the model's numbers."""
        return torch.randn(*sizes, generator=self.generator).to(self.model.device, self.model.dtype)


def find_calls(model: LanguageModel, chunk: int = CHUNK, seconds: float = SECONDS) -> Finding:
    """The cheapest shape in which no product and no attention of the model varies; products are tried for about
    `seconds`. Needs no slots; the model keeps its own shape.
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
        return Finding(FAST, variance, kernel=True)
    kinds = {layer.kind for layer in tiled_linears(model.network)}
    counts = f"{trial.counts} of {len(COUNTS)} numbers of rows" if not products.rows else "whole tiles"
    found = [f"{len(kinds)} kinds of products with {counts}"] if kinds else []
    found += [f"integer products by {name}, which need no trial" for name in integer_kernels(model.network)]
    tried = f"{', '.join(found)}, {len(model.heads)} of attention"
    calls = replace(products, queries=attention.queries, most_queries=attention.most_queries, sizes=attention.sizes)
    return Finding(calls, tried=tried)


def settle(model: LanguageModel, chunk: int = CHUNK, seconds: float = SECONDS) -> Finding:
    """Finds the shape, uses it and tries whole forwards in it; if those differ, stricter shapes. If the strictest
    differs too, the model is left in FAST and is no longer exact. Slots 0 to 2 must be free.
    """
    found = find_calls(model, chunk, seconds)
    if not found.variance:
        own = found.calls
        padded = replace(own, least=max(2, own.least), queries=max(4, own.queries))
        strict = replace(own, rows=own.rows or 32, queries=32, most_queries=32)
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


# Products


def _find_products(trial: Trial) -> CallShape | None:
    layers = list({layer.kind: layer for layer in tiled_linears(trial.model.network)}.values())
    layers.sort(key=lambda layer: layer.nbytes)
    least = _least_rows(trial, layers)
    if least:
        return CallShape(least=measure_least_rows(large_kinds(tiled_linears(trial.model.network)), least))
    for rows in _tiles_by_time(trial, layers):
        if not any(_tile_varies(trial, layer, rows) for layer in layers):
            return CallShape(rows=rows)
    return None


def _least_rows(trial: Trial, layers: Sequence[TiledLinear]) -> int:
    """The number of rows from which a row's bits are the same with any number; 0 if there is none."""
    tries = [_CountTrial(trial, layer) for layer in layers]
    for number, count in enumerate(COUNTS):
        for tried in tries:
            if count <= tried.most:
                tried.compare(count)
        if any(tried.place_varies or max(tried.differing, default=0) > MOST_LEAST for tried in tries):
            return 0
        if number >= len(FIRST_COUNTS) and time.perf_counter() > trial.deadline:
            trial.counts = number + 1
            break
    least = 1 + max((max(tried.differing, default=0) for tried in tries), default=0)
    calls = CallShape(least=least)
    wide = [(layer, count) for layer in layers for count in ((4,) if layer.is_huge else (8, 33))]
    return 0 if any(_varies_in_call(trial, layer, calls, count) for layer, count in wide) else least


class _CountTrial:
    """One matrix, multiplied by as many rows as it can be compared with. Another of its shape stands in for it, whose
    products cancel; but not for a huge one, which would be held twice.
    """

    def __init__(self, trial: Trial, layer: TiledLinear) -> None:
        self.layer, self.cancels = (layer, False) if layer.is_huge else (_cancelling(trial, layer), True)
        self.most = CallShape().most_rows(layer.is_huge)
        self.differing: set[int] = set()
        self._rows = trial.draw(self.most, layer.in_features)
        if self.cancels:
            half = layer.in_features // 2
            self._rows[:, half : 2 * half] = self._rows[:, :half]
        self._whole = _product(self.layer, CallShape(), self._rows)
        alike = _product(self.layer, CallShape(), self._rows[:1].expand(self.most, -1).contiguous())
        self.place_varies = not torch.equal(alike, self._whole[:1].expand(self.most, -1))

    def compare(self, count: int) -> None:
        """Notes whether so many rows give other bits than all of them."""
        enough = 1 if self.cancels else COMPARED[self.layer.dtype.itemsize] // self.layer.out_features
        for start in range(0, min(max(1, enough), self.most - count + 1), count):
            rows = slice(start, start + count)
            if not torch.equal(_product(self.layer, CallShape(), self._rows[rows]), self._whole[rows]):
                self.differing.add(count)
                return


def _cancelling(trial: Trial, layer: TiledLinear) -> TiledLinear:
    """A matrix of this shape whose second half takes the first one's products away again."""
    half = layer.in_features // 2
    drawn = trial.draw(layer.out_features, half)
    weight = torch.cat([drawn, -drawn, drawn.new_zeros(layer.out_features, layer.in_features - 2 * half)], dim=1)
    bias = None if layer.bias is None else torch.zeros_like(layer.bias)
    return TiledLinear(weight, bias, CallShape(), packed=layer.packed is not None)


def _tile_varies(trial: Trial, layer: TiledLinear, rows: int) -> bool:
    return _varies_in_call(trial, layer, CallShape(rows=rows), rows)


def _varies_in_call(trial: Trial, layer: TiledLinear, calls: CallShape, count: int) -> bool:
    """Whether a row's bits depend on its place among `count` rows, on how many of a tile are padding, or on what its
    neighbours are: huge, infinite or not a number.
    """
    drawn = trial.draw(count + 1, layer.in_features)
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
    """TILES, the fastest first for a prompt and the steps after it together."""
    every = tiled_linears(trial.model.network)
    head = max(layers, key=lambda layer: layer.out_features, default=None)
    taken = dict.fromkeys(TILES, 0.0)
    for layer in layers:
        times = sum(other.kind == layer.kind for other in every)
        for tile in TILES:
            rows = trial.draw(tile, layer.in_features + layer.missing)
            layer.multiply(rows)
            seconds = min(_seconds(lambda layer=layer, rows=rows: layer.multiply(rows)) for _ in range(3))  # type: ignore[misc]
            calls = STEPS + (0 if layer is head else PROMPT // tile)
            taken[tile] += times * calls * seconds
    return sorted(TILES, key=taken.__getitem__)


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


# Attention


def _find_queries(trial: Trial) -> CallShape | None:
    kinds = sorted(trial.model.heads, key=lambda heads: (heads.size, heads.window))
    odd = any(heads.size % SIZES[-1] for heads in kinds)
    for sizes in SIZES if odd else SIZES[:1]:
        for queries, most in QUERIES:
            calls = CallShape(queries=queries, most_queries=most, sizes=sizes)
            if not any(_attention_varies(trial, heads, calls) for heads in kinds):
                return calls
    return None


def _attention_varies(trial: Trial, heads: Heads, calls: CallShape) -> bool:
    """Whether a row's bits depend on who is attended with it: 1…8 verified rows, more, chunks of a prompt, several
    texts at once, neighbours that are no numbers; behind one to four blocks of keys.
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
    """Random queries, keys and values of one kind of attention, and their results in calls of one shape. `cancels` says
    what is nothing but rounding.
    """

    def __init__(
        self, trial: Trial, heads: Heads, calls: CallShape, cancels: Literal["", "scores", "values"] = ""
    ) -> None:
        self.heads, self.calls, self.chunk = heads, calls, min(trial.chunk, KEY_BLOCK - 8)
        length = 4 * KEY_BLOCK
        self.queries = trial.draw(3, heads.kv_heads, heads.groups, length, heads.size)
        self.keys = trial.draw(3, heads.kv_heads, length, heads.size)
        self.values = trial.draw(3, heads.kv_heads, length, heads.value_size)
        self.sinks = trial.draw(heads.kv_heads * heads.groups) if heads.sinks else None
        # As many heads as make one row enough to compare; they share one head's keys.
        self.many = max(1, COMPARED[trial.model.dtype.itemsize] // 2 // (heads.groups * heads.value_size))
        self.several = trial.draw(self.many, heads.groups, 32, heads.size)
        if cancels:
            self.many, self.several = 1, trial.draw(1, heads.groups, 72, heads.size)
        if cancels == "scores":
            self._cancel_scores()
        elif cancels == "values":
            self._cancel_values()

    def _cancel_scores(self) -> None:
        """Every score is the sum of large products and of the same with the other sign."""
        half = self.heads.size // 2
        large = math.sqrt(NOISE * 2**24 / (self.heads.scale * math.sqrt(half)))
        self.keys *= large
        self.keys[..., half : 2 * half] = self.keys[..., :half]
        for queries in (self.queries, self.several):
            queries *= large
            queries[..., half : 2 * half] = -queries[..., :half]
            queries[..., 2 * half :] = 0

    def _cancel_values(self) -> None:
        """All keys that are seen weigh the same, and their values add up to nothing."""
        for queries in (self.queries, self.several):
            queries.zero_()
        blocks = self.values.unflatten(2, (-1, KEY_BLOCK))
        blocks[:, :, :, CANCELLED : 2 * CANCELLED] = -blocks[:, :, :, :CANCELLED]
        blocks[:, :, :, 2 * CANCELLED :] = 0

    def left_over(self) -> Iterator[bool]:
        """Any number of rows up to 40, and many of a prompt's: whatever is left over of the kernel's own blocks."""
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
        """1…8 rows and more at the end of a block, compared with 32; with more heads where there are few rows."""
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
        """A prompt's rows in chunks, compared with the largest chunk."""
        start = block * KEY_BLOCK - self.chunk
        whole = self._attend((0, start, self.chunk))
        for rows in (self.chunk - 1, 100, 65, 8):
            if rows < self.chunk:
                behind = self.chunk - rows
                yield torch.equal(self._attend((0, start + behind, rows)), whole[:, :, behind:])
        yield torch.equal(self._attend((0, start, 16)), whole[:, :, :16])

    def together(self, block: int) -> Iterator[bool]:
        """Three texts in one call, each compared with itself alone."""
        if self.heads.eager:
            return
        parts = tuple((slot, block * KEY_BLOCK - 50 + 7 * slot, rows) for slot, rows in enumerate((1, 4, 2)))
        together = self._attend(*parts)
        for number, (slot, start, rows) in enumerate(parts):
            alone = self._attend((slot, start, rows))
            yield torch.equal(together[number : number + 1, :, :rows], alone)

    def _several(self, start: int, rows: slice, many: int, queries: Tensor | None = None) -> Tensor:
        """Rows of the first of `several` heads at positions from `start` on -> [many, groups, rows, value_size]."""
        heads, count = self.heads, rows.stop - rows.start
        group = Group.of(Span(0, start + rows.start, 0, count))
        query = (self.several if queries is None else queries)[:many, :, rows]
        end = group.length + -group.length % self.calls.keys
        keys, values = (part[:1, :1, :end].expand(-1, many, -1, -1) for part in (self.keys, self.values))
        sinks = None if self.sinks is None else self.sinks[: heads.groups].repeat(many)
        out = attend_group(
            ForwardContext([], None, self.calls), group, query.reshape(1, many, heads.groups * count, heads.size),
            keys, values,
            heads.scale, heads.window, heads.softcap, sinks,
        )  # fmt: skip
        return out.reshape(many, heads.groups, count, heads.value_size)

    def _attend(self, *parts: tuple[int, int, int]) -> Tensor:
        """Slot, start and rows of each text -> [texts, heads, rows, value_size]."""
        heads, rows = self.heads, max(count for _, _, count in parts)
        group = Group.of(*(Span(slot, start, 0, count) for slot, start, count in parts))
        drawn = [self.queries[slot, :, :, start : start + rows] for slot, start, _ in parts]
        for number, (_, _, count) in enumerate(parts):  # the last row fills up those that a text lacks
            drawn[number] = torch.cat([drawn[number][:, :, :count], drawn[number][:, :, count - 1 : count].expand(
                -1, -1, rows - count, -1
            )], dim=2)  # fmt: skip
        query = torch.stack(drawn).reshape(len(parts), heads.kv_heads, heads.groups * rows, heads.size)
        slots, end = slice(parts[0][0], parts[0][0] + len(parts)), group.length + -group.length % self.calls.keys
        context = ForwardContext([], None, self.calls)
        out = attend_group(
            context, group, query, self.keys[slots, :, :end], self.values[slots, :, :end],
            heads.scale, heads.window, heads.softcap, self.sinks,
        )  # fmt: skip
        return out.reshape(len(parts), heads.kv_heads * heads.groups, rows, heads.value_size)
