"""Properties of the kernels that only a GPU can show.

Its instructions keep the interpreter's order of summation, for every tile that a number of rows selects, and a captured
launch reads lengths on the device. A kernel's memory is filled with NaN first, so values it does not write are noticed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from codespec.backends.torch import rowwise
from codespec.backends.torch.attention import reference_slot_attention as reference
from codespec.backends.torch.attention import slot_attention
from codespec.backends.torch.cache import KVCache
from codespec.backends.torch.cuda.launch import plan_of
from codespec.backends.torch.linear import find_product_variance, multiply
from tests.backends.cuda.attention_cases import Case, Shape, Stretch, draw_case, error, lay_out, part
from tests.gpu.models import gpu

# `poisoned` requests deterministic algorithms, and torch's own products are not.
pytestmark = [*gpu, pytest.mark.filterwarnings("ignore:.*eterministic")]

HALVES = (torch.bfloat16, torch.float16)
NEAR = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
SHAPES = {
    "7b": Shape(groups=7, kv_heads=4, size=128, value_size=128, dtype=torch.bfloat16),
    "0.5b": Shape(groups=7, kv_heads=2, size=64, value_size=64, dtype=torch.bfloat16),
    "float16": Shape(groups=5, kv_heads=8, size=128, value_size=128, dtype=torch.float16),
    "no-groups": Shape(groups=1, kv_heads=3, size=80, value_size=80, dtype=torch.bfloat16),
    "many-groups": Shape(groups=20, kv_heads=1, size=128, value_size=64, dtype=torch.bfloat16),
    "gemma": Shape(groups=2, kv_heads=4, size=256, value_size=256, window=600, softcap=50.0, dtype=torch.bfloat16),
    "sinks": Shape(groups=8, kv_heads=2, window=128, sinks=True, dtype=torch.bfloat16),
    "float32": Shape(groups=4, kv_heads=2, size=128, value_size=128),
    "float32-window": Shape(groups=2, kv_heads=2, size=96, value_size=64, window=40, softcap=5.0, sinks=True),
}
STRETCHES = (Stretch(0, 0, 17), Stretch(1, 505, 40), Stretch(2, 1900, 1), Stretch(3, 2040, 8))
CAPACITY = 2048
PRODUCTS = ((3584, 3584), (4608, 3584), (896, 4864), (896, 896), (37888, 3584), (250, 1000), (17, 70))
COUNTS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100, 128, 144, 300, 700)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Make torch fill the result of `empty` with NaN, using deterministic algorithms."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def drawn(name: str, padding: int = 3) -> Case:
    return draw_case(SHAPES[name], STRETCHES, CAPACITY, padding, "cuda")


def draw(*sizes: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


@pytest.mark.parametrize("name", SHAPES)
def test_attention_equals_the_reference(name: str) -> None:
    case = drawn(name)
    got = slot_attention(*case.arguments)
    assert error(got, reference(*case.arguments)) <= NEAR[case.shape.dtype]
    assert not got[-3:].any(), "padding rows come out as zeros"


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_of_attention_is_its_own(name: str) -> None:
    """Alone, in chunks, with another grid bound, with padding: equal bits."""
    case = drawn(name)
    whole = slot_attention(*case.arguments)
    begin = 0
    for index, stretch in enumerate(STRETCHES):
        for offset in {0, 1, stretch.count // 2, stretch.count - 1} - {stretch.count}:
            for count in {1, 2, stretch.count - offset}:
                rows = min(count, stretch.count - offset)
                for reach in (CAPACITY, 8 * CAPACITY):
                    alone = slot_attention(*part(case, index, offset, rows, reach, padding=count % 3).arguments)
                    assert torch.equal(alone[:rows], whole[begin + offset : begin + offset + rows])
        begin += stretch.count


def test_a_captured_launch_reads_lengths_on_the_device() -> None:
    """Captured with one layout, replayed with others in the same memory."""
    case = drawn("7b")
    slot_attention(*case.arguments)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = slot_attention(*case.arguments)
    scratch, total = case.keys.shape[0] - 1, case.query.shape[0]
    for stretches in ((Stretch(3, 7, 30),), (Stretch(2, 0, 1), Stretch(0, 1000, 60)), STRETCHES):
        padding = total - sum(stretch.count for stretch in stretches)
        rows = lay_out(stretches, 2, padding, scratch, CAPACITY, "cuda")
        case.rows.tiles.zero_()
        case.rows.tiles[: len(rows.tiles)] = rows.tiles[: len(case.rows.tiles)]
        case.rows.positions.copy_(rows.positions)
        case.rows.slots.copy_(rows.slots)
        graph.replay()
        assert torch.equal(captured, slot_attention(*case.arguments))
        assert error(captured, reference(*case.arguments)) <= NEAR[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("columns", "depth"), PRODUCTS)
def test_a_row_of_a_product_is_its_own(columns: int, depth: int, biased: bool, dtype: torch.dtype) -> None:
    """Every tile and both ways to add splits, for every number of rows: equal bits, and close to a float64 product."""
    weight, rows = draw(columns, depth, dtype=dtype), draw(max(COUNTS), depth, dtype=dtype, seed=1)
    bias = draw(columns, dtype=dtype, seed=2) if biased else None
    plan = plan_of(columns, depth, dtype)
    whole = multiply(rows, weight, bias, plan)
    wanted = rows[:32].double() @ weight.double().T + (bias.double() if bias is not None else 0.0)
    assert error(whole[:32], wanted) <= NEAR[dtype]
    for count in COUNTS:
        assert torch.equal(multiply(rows[:count], weight, bias, plan), whole[:count])
        assert torch.equal(multiply(rows[-count:], weight, bias, plan), whole[-count:])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_probe_at_loading_finds_nothing(dtype: torch.dtype) -> None:
    assert find_product_variance(torch.device("cuda"), dtype) == ""


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("size", [64, 896, 3584, 5000])
def test_rowwise_kernels(size: int, dtype: torch.dtype) -> None:
    rows, added, weight = (draw(40, size, dtype=dtype, seed=seed) for seed in range(3))
    weight, near = weight[0].clone(), NEAR[dtype]
    summed, normed = rowwise.add_rms_norm(rows, added, weight, 1e-6)
    assert torch.equal(summed, rows + added)
    wanted = torch.nn.functional.rms_norm(summed.float(), (size,), weight.float(), 1e-6)
    assert error(normed, wanted) <= near and torch.equal(normed, rowwise.rms_norm(summed, weight, 1e-6))
    assert torch.equal(rowwise.rms_norm(summed[7:9], weight, 1e-6), normed[7:9])
    gated = rowwise.silu_mul(torch.cat([rows, added], dim=1))
    assert error(gated, torch.nn.functional.silu(rows.double()) * added.double()) <= near
    assert torch.equal(rowwise.silu_mul(torch.cat([rows[5:6], added[5:6]], dim=1)), gated[5:6])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("size", [64, 80, 128])
def test_rotary_and_scatter(size: int, dtype: torch.dtype) -> None:
    mixed = draw(20, 9, size, dtype=dtype)
    cosine, sine = (draw(20, 1, size, dtype=dtype, seed=seed) for seed in (1, 2))
    turned = rowwise.rotate(mixed[:, :7], cosine, sine)
    heads, *angles = [tensor.cpu().double() for tensor in (mixed[:, :7], cosine, sine)]
    assert error(turned.cpu(), rowwise.rotate(heads, *rowwise.make_angles(*angles))) <= NEAR[dtype]
    assert torch.equal(rowwise.rotate(mixed[3:4, :7], cosine[3:4], sine[3:4]), turned[3:4])
    slots, positions = torch.arange(20, device="cuda") % 3, torch.arange(20, device="cuda") * 5
    caches = [KVCache({0: (7, size, size)}, 2, 100, dtype, torch.device(d), True) for d in ("cuda", "cpu")]
    for cache in caches:
        on = [tensor.to(cache.keys[0].device) for tensor in (slots, positions, turned, mixed[:, 2:])]
        cache.scatter(0, *on)
    for held in ("keys", "values"):
        assert torch.equal(getattr(caches[0], held)[0].cpu(), getattr(caches[1], held)[0])
