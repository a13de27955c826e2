"""Integer products and their input rows: correct, and the same bits whatever else is in the call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from codespec.errors import ModelError
from codespec.models.int8 import kernels
from codespec.models.int8.kernels import FULL, HALF, KERNELS, MOST_DEPTH, Choice, Kernel, choose_kernel, find_fault
from codespec.models.int8.linear import Int8Linear, fit_range, quantize, quantize_norm, quantize_weight, to_levels

COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 200, 257, 512)
USABLE = [(kernel, most) for kernel in KERNELS for most in (FULL, HALF) if not find_fault(kernel, most)]
SHAPES = ((33, 100), (256, 704))


def layer(out: int, depth: int, seed: int = 0, choice: Choice | None = None) -> Int8Linear:
    generator = torch.Generator().manual_seed(seed)
    codes, scale = quantize_weight(torch.randn(out, depth, generator=generator))
    bias = torch.randn(out, generator=generator)
    return Int8Linear(codes, scale, bias, choice or choose_kernel())


def draw(rows: int, depth: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, depth, generator=torch.Generator().manual_seed(seed))


def test_a_kernel_is_right_here() -> None:
    assert USABLE and (choose_kernel().kernel, choose_kernel().most) in USABLE


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel, most", USABLE, ids=lambda value: getattr(value, "name", value))
def test_bits_do_not_depend_on_the_number_of_rows(kernel: Kernel, most: int, shape: tuple[int, int]) -> None:
    product, rows = layer(*shape, choice=Choice(kernel, most)), draw(512, shape[1])
    whole = product(rows)
    for count in COUNTS:
        for start in {0, (512 - count) // 2, 512 - count}:
            assert torch.equal(product(rows[start : start + count]), whole[start : start + count]), count


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e38, 0.0, 1e-40])
def test_a_neighbour_changes_nothing(bad: float) -> None:
    product, rows = layer(256, 704), draw(9, 704)
    alone = product(rows)
    for position in (0, 4, 8):
        beside = torch.full_like(rows, bad)
        beside[position] = rows[position]
        assert torch.equal(product(beside)[position], alone[position])
    spoiled = product(torch.full((1, 704), bad))
    assert bool(spoiled.isfinite().all()) == (abs(bad) < 1e38 and bad == bad)


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    before, product, rows = torch.get_num_threads(), layer(1152, 896), draw(130, 896)
    try:
        torch.set_num_threads(1)
        alone = product(rows)
        torch.set_num_threads(threads)
        assert torch.equal(product(rows), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("most", [FULL, HALF])
def test_kernels_agree_to_the_bit(most: int) -> None:
    """All kernels that are correct here agree with each other and with 64-bit sums."""
    rows = draw(70, 704)
    for kernel in (kernel for kernel, range_ in USABLE if range_ == most):
        product = layer(256, 704, choice=Choice(kernel, most))
        generator = torch.Generator().manual_seed(0)
        codes, scale = fit_range(*quantize_weight(torch.randn(256, 704, generator=generator)), FULL, most)
        peak = rows.abs().amax(dim=1, keepdim=True)
        sums = to_levels(rows, peak).long() @ codes.long().T
        wanted = (sums.float() * (scale * (1 / FULL))) * peak + torch.randn(256, generator=generator)
        assert torch.equal(product(rows), wanted)


@pytest.mark.parametrize("kernel", [kernel for kernel, _ in USABLE], ids=lambda kernel: kernel.name)
def test_weights_may_be_transposed(kernel: Kernel) -> None:
    """GPT-2 stores weights as [in, out]; oneDNN's packing reads the memory as it is."""
    weight = torch.randint(-HALF, HALF + 1, (96, 40), dtype=torch.int8).T
    rows = torch.randint(-FULL, FULL + 1, (3, 96)).float()
    packed = kernel.pack(weight, torch.ones(40))
    assert torch.equal(kernel.multiply(kernel.encode(rows.clone()), packed), (rows.long() @ weight.long().T).float())


@settings(max_examples=40)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.booleans())
def test_near_the_float_product(depth: int, out: int, rows: int, biased: bool) -> None:
    torch.manual_seed(depth + 100 * out)
    plain = nn.Linear(depth, out, bias=biased).requires_grad_(False)
    product = Int8Linear(*quantize_weight(plain.weight), plain.bias if biased else None, choose_kernel())
    inputs = torch.randn(rows, 1, depth)
    got, wanted = product(inputs), plain(inputs)
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 0.025 * (inputs.abs().amax() * plain.weight.abs().sum(1).max() + 0.01)


def test_a_norm_changes_only_the_factors() -> None:
    generator = torch.Generator().manual_seed(3)
    codes, scale = quantize_weight(torch.randn(64, 128, generator=generator))
    rows, choice = 7 * draw(40, 128), choose_kernel()
    normed = nn.functional.rms_norm(rows, (128,), eps=1e-6)
    after = Int8Linear(codes.clone(), scale, None, choice)(normed)
    fused = Int8Linear(codes.clone(), scale, None, choice, normed=True)
    got = fused.multiply(quantize_norm(rows, torch.tensor([1e-6 * 128]), choice.kernel))
    assert torch.allclose(got, after, rtol=1e-3, atol=2e-2)
    assert torch.equal(quantize(rows, choice.kernel).codes, quantize(4 * rows, choice.kernel).codes)


def test_sums_that_may_not_fit_are_refused() -> None:
    with pytest.raises(AssertionError, match="32 bits"):
        Int8Linear(torch.zeros(1, MOST_DEPTH + 1, dtype=torch.int8), torch.ones(1), None, choose_kernel())


def test_the_deepest_sums_are_exact() -> None:
    choice = choose_kernel()
    codes = torch.full((3, MOST_DEPTH), choice.most, dtype=torch.int8)
    codes[1] *= -1
    packed = choice.kernel.pack(codes, torch.ones(3))
    levels = torch.full((2, MOST_DEPTH), float(FULL))
    wanted = (levels.long() @ codes.long().T).float()
    assert torch.equal(choice.kernel.multiply(choice.kernel.encode(levels), packed), wanted)


def saturating(codes: Tensor, packed: tuple[Tensor, Tensor]) -> Tensor:
    """A product that adds pairs in 16 bits, like x86 without VNNI."""
    weight, scale = packed
    unsigned = codes.long() + kernels.ZERO
    products = nn.functional.pad(unsigned[:, None] * weight.long()[None], (0, weight.shape[1] % 2))
    pairs = products.unflatten(2, (-1, 2)).sum(3).clamp(-(2**15), 2**15 - 1)
    return (pairs.sum(2) - kernels.ZERO * weight.long().sum(1)).float() * scale


SATURATING = Kernel("pairs", lambda levels: levels, lambda weight, scale: (weight, scale), saturating)


def test_saturating_pairs_are_found_and_get_half_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_fault(SATURATING, FULL) == "its sums saturate or are wrong" and not find_fault(SATURATING, HALF)
    monkeypatch.setattr(kernels, "KERNELS", (SATURATING,))
    monkeypatch.setattr(kernels, "WIDE", 64)
    monkeypatch.setattr(kernels, "SLOW", 1e9)
    choice = kernels.try_kernels()
    assert choice == Choice(SATURATING, HALF) and not choice.notes, "a user can't change it"
    assert choice.label.startswith("pairs, weights within ±63 (7 of 8 bits: ")
    assert Choice(SATURATING, FULL).label == "pairs, weights within ±127 (all 8 bits)"
    codes, scale = quantize_weight(draw(20, 64))
    narrow, wider = fit_range(codes.clone(), scale, FULL, HALF)
    assert narrow.abs().max() == HALF
    assert torch.allclose(narrow * wider[:, None], codes * scale[:, None], atol=float(wider.max()) * 0.51)


def test_wrong_and_missing_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> Tensor:
        raise RuntimeError("no such kernel\nand more")

    wrong = replace(SATURATING, name="wrong", multiply=lambda codes, packed: saturating(codes, packed) + 1)
    monkeypatch.setattr(kernels, "KERNELS", (wrong, replace(SATURATING, name="absent", pack=gone)))
    with pytest.raises(ModelError, match=r"wrong: its sums.*absent: not usable \(no such kernel\).*use dtype bfloat16"):
        kernels.try_kernels()
