"""Multiply matrices of 8-bit integers, summed in 32 bits, with the kernels that torch ships.

Integer sums are exact in any order, so a row's product has the same bits in any batch, with any number of threads and
on any processor. Activations are unsigned with zero point 128: oneDNN has fast kernels only for those (a signed product
was a thousand times slower). Without VNNI, x86 kernels add pairs of products in 16 bits, which saturate if weights
exceed ±63; on those processors the weights use half of their range.

Nothing is assumed about a processor: each kernel is checked against integer arithmetic on extreme and random numbers,
and timed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from statistics import geometric_mean
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from codespec.errors import ModelError
from codespec.models.call_shape import CallShape

ZERO = 128  # code of 0.0
FULL, HALF = 127, 63  # largest weight magnitude: in 8 bits; if sums of pairs must fit into 16 bits
MOST_DEPTH = 66_000  # 255 · 127 · depth must fit into 32 bits
COUNTS = (1, 2, 5, 16, 33, 64, 130)  # row counts of the trial products
OUTPUTS, DEPTH = 37, 2503  # trial shape: not a multiple of a vector, and with sums that float32 can't represent
TIMED = (1, 16, 64)  # row counts timed: a decode step, a draft, a prompt; kernels rank differently on each
WIDE, NARROW = 4864, 896  # timed shape, from a real model: small products measure mostly call overhead
CACHES = 64 * 2**20  # bytes read before each timed product, to evict its weights as in a real step
TURNS = 5
SLOW = 10.0  # times slower than float32: above this it is a reference kernel (measured: 100 times)
_BUCKETS = CallShape()
_ZERO = torch.tensor(float(ZERO))  # torch would convert a Python number at each call


@dataclass(frozen=True, slots=True)
class Kernel:
    """One implementation of the integer product.

    encode    integral float32 values within ±127 [N, in] → codes for `multiply`; may overwrite its argument
    pack      int8 [out, in] and float32 scales [out] → weights in the kernel's own layout
    multiply  codes and packed weights → float32 [N, out]: the integer product times the output scale, rounded once
    """

    name: str
    encode: Callable[[Tensor], Tensor]
    pack: Callable[[Tensor, Tensor], Any]
    multiply: Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that this process uses.

    most  the largest weight magnitude that it multiplies without saturating
    slow  whether it was much slower than a float32 product
    """

    kernel: Kernel
    most: int
    slow: bool = False

    @property
    def label(self) -> str:
        """The kernel, the range of its weights, and the reason if that is not the full range."""
        why = "this processor's fast products add two at a time in 16 bits, which larger weights overflow"
        bits = "all 8 bits" if self.most == FULL else f"7 of 8 bits: {why}"
        return f"{self.kernel.name}, weights within ±{self.most} ({bits})"

    @property
    def notes(self) -> tuple[str, ...]:
        """A clause that suggests another dtype if products are slow; empty otherwise."""
        took = f"took more than {SLOW:.0f} times as long as float32 ones when they were tried"
        return (f"int8 products {took}: compare dtype bfloat16",) * self.slow


def _encode_unsigned(levels: Tensor) -> Tensor:
    return levels.add_(_ZERO).to(torch.uint8)


def _pack_onednn(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    zeros = torch.zeros(len(scale), dtype=torch.long)
    return torch.ops.onednn.qlinear_prepack(weight.contiguous(), None), scale, zeros  # qlinear_prepack ignores strides


def _multiply_onednn(codes: Tensor, packed: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    weight, scale, zeros = packed
    count = len(codes)
    computed = _BUCKETS.computed(count)  # oneDNN compiles and keeps a kernel for each number of rows
    if computed != count:
        codes = pad(codes, (0, 0, 0, computed - count))
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, ZERO, weight, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out if computed == count else out[:count]


class _Fbgemm:
    """A thread-safe context manager that makes torch pack for FBGEMM without deprecation warnings.

    If FBGEMM is missing, `find_fault` reports torch's own error.
    """

    def __init__(self) -> None:
        self.lock, self.inside = Lock(), 0
        self.outside = ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                engine = torch.backends.quantized.engine
                self.outside.callback(setattr, torch.backends.quantized, "engine", engine)
                torch.backends.quantized.engine = "fbgemm"
                self.outside.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", UserWarning)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.outside.close()


_FBGEMM = _Fbgemm()


def _pack_fbgemm(weight: Tensor, scale: Tensor) -> Any:
    zeros = torch.zeros(len(scale), dtype=torch.long)
    with _FBGEMM:
        quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(quantized, None)


def _multiply_fbgemm(codes: Tensor, packed: Any) -> Tensor:
    product: Any = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    out: Tensor = product(codes, 1.0, ZERO, packed)
    return out


ONEDNN = Kernel("oneDNN", _encode_unsigned, _pack_onednn, _multiply_onednn)
FBGEMM = Kernel("FBGEMM", lambda levels: levels, _pack_fbgemm, _multiply_fbgemm)
KERNELS = (ONEDNN, FBGEMM)


def choose_kernel() -> Choice:
    """Return the fastest correct kernel, tried once per process. Raise ModelError if there is none."""
    with _CHOOSING:
        return _chosen()


def try_kernels() -> Choice:
    """Return the fastest correct kernel, preferring the full range of weights over half of it.

    Raise ModelError if no kernel is correct.
    """
    slow: list[tuple[float, Choice]] = []
    right: list[Kernel] = []
    for most in (FULL, HALF):  # a kernel that is correct with the full range is not retried with half
        kernels = [kernel for kernel in KERNELS if kernel not in right and not find_fault(kernel, most)]
        right += kernels
        plain, *taken = _costs([_float_products(), *map(_products, kernels)])
        ratios = [cost / plain for cost in taken]
        if ratios and min(ratios) <= SLOW:
            return Choice(kernels[ratios.index(min(ratios))], most)
        slow += [(ratio, Choice(kernel, most, slow=True)) for ratio, kernel in zip(ratios, kernels, strict=True)]
    if slow:
        return min(slow, key=lambda entry: entry[0])[1]
    faults = "; ".join(f"{kernel.name}: {find_fault(kernel, HALF)}" for kernel in KERNELS)
    raise ModelError(f"int8 is not available on this processor ({faults})", "use dtype bfloat16 or float32")


_chosen = cache(try_kernels)
_CHOOSING = Lock()  # models may load in several threads, and a trial changes torch's thread count


def find_fault(kernel: Kernel, most: int) -> str:
    """Return the fault of a kernel's products for weights up to ±`most`, or "" if they are correct.

    The inputs are random and extreme values.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-most, most + 1, (OUTPUTS, DEPTH), dtype=torch.int8, generator=generator)
    weight[0], weight[1], weight[2, ::2] = most, -most, most
    scale = torch.rand(OUTPUTS, generator=generator) + 0.5
    try:
        packed = kernel.pack(weight, scale)
        for count in COUNTS:
            levels = torch.randint(-FULL, FULL + 1, (count, DEPTH), generator=generator).float()
            levels[0] = FULL
            levels[-1] = -FULL
            wanted = (levels.long() @ weight.long().T).float() * scale
            if not torch.equal(kernel.multiply(kernel.encode(levels), packed), wanted):
                return "its sums saturate or are wrong"
    except (RuntimeError, AttributeError) as error:
        return f"not usable ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return ""


def _products(kernel: Kernel) -> list[Callable[[], object]]:
    packed = kernel.pack(torch.ones(WIDE, NARROW, dtype=torch.int8), torch.ones(WIDE))
    codes = [kernel.encode(torch.ones(rows, NARROW)) for rows in TIMED]
    return [lambda some=some: kernel.multiply(some, packed) for some in codes]  # type: ignore[misc]


def _float_products() -> list[Callable[[], object]]:
    weight = torch.ones(WIDE, NARROW)
    return [lambda rows=rows: linear(torch.ones(rows, NARROW), weight) for rows in TIMED]  # type: ignore[misc]


def _costs(kinds: list[list[Callable[[], object]]]) -> list[float]:
    """Return the geometric mean of each kind's minimum product times, in seconds, on one thread.

    Kinds take turns, so that a busy moment slows all of them.
    """
    taken: dict[tuple[int, int], list[float]] = {}
    other = torch.ones(CACHES // 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, thread synchronization would dominate
    try:
        for _ in range(1 + TURNS):
            for kind, products in enumerate(kinds):
                for size, product in enumerate(products):
                    other.sum()
                    began = time.perf_counter()
                    product()
                    taken.setdefault((kind, size), []).append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return [geometric_mean(min(taken[kind, size][1:]) for size in range(len(TIMED))) for kind in range(len(kinds))]
