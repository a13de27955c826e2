"""Compile the Triton kernels to machine code of their target GPU, without having one.

The output shows which instructions are used and how much shared memory is needed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from codespec.backends.torch.cuda.launch import ProductPlan, Tile, plan_of
from tests.backends.cuda.attention_cases import Shape, Stretch, draw_case

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

HOPPER, SHARED_BYTES = 90, 227 << 10
HALF, WHOLE = torch.bfloat16, torch.float32
SHAPES = {
    "7b": Shape(groups=7, kv_heads=4, size=128, value_size=128, dtype=HALF),
    "gemma": Shape(groups=2, kv_heads=4, size=256, value_size=256, window=600, softcap=50.0, dtype=HALF),
    "float32": Shape(groups=4, kv_heads=2, size=128, value_size=128, sinks=True),
}


class Absent:
    """A GPU that is described but not present."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", HOPPER, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Record the kernels compiled in place of each launch."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    found: list[Any] = []
    launch = JITFunction.run

    def run(kernel: Any, *arguments: Any, warmup: bool, **named: Any) -> Any:
        found.append(launch(kernel, *arguments, warmup=True, **named))
        return found[-1]

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(driver, "_active", Absent())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return found


def others(compiled: list[Any]) -> list[str]:
    """Return the kernels that multiply with instructions across warps, whose order of summation differs."""
    return [kernel.name for kernel in compiled if "wgmma" in kernel.asm["ptx"]]


def check(compiled: list[Any], count: int, multiplies: bool) -> None:
    """Assert that everything fits, and that a row's sums have one order."""
    assert len(compiled) == count and not others(compiled)
    assert all(kernel.metadata.shared <= SHARED_BYTES and kernel.asm["cubin"] for kernel in compiled)
    assert ("mma.sync" in compiled[0].asm["ptx"]) is multiplies


@pytest.mark.parametrize("name", SHAPES)
def test_attention(name: str, compiled: list[Any]) -> None:
    from codespec.backends.torch.cuda.attention_kernels import attend_tiles

    attend_tiles(*draw_case(SHAPES[name], (Stretch(0, 0, 17), Stretch(1, 505, 9)), 1024, 3, "cpu").arguments)
    check(compiled, 2, SHAPES[name].dtype == HALF)


@pytest.mark.parametrize(
    ("columns", "depth", "dtype"), [(3584, 3584, HALF), (896, 4864, WHOLE), (250, 1000, HALF)], ids=str
)
def test_products(columns: int, depth: int, dtype: torch.dtype, compiled: list[Any]) -> None:
    """With every tile that a number of rows selects."""
    from codespec.backends.torch.cuda.product_kernels import multiply

    weight, plan = torch.zeros(columns, depth, dtype=dtype), plan_of(columns, depth, dtype)
    for count in (1, 17, 33, 65, 700):
        multiply(torch.zeros(count, depth, dtype=dtype), weight, None, plan)
    check(compiled, 5 + 4 * (plan.splits > 1), dtype == HALF)


def test_a_tile_that_must_not_occur_is_seen(compiled: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from codespec.backends.torch.cuda import product_kernels

    large = Tile(64, 128, 64, warps=4, stages=3)
    monkeypatch.setattr(product_kernels, "tile_of", lambda *_: large)
    product_kernels.multiply(
        torch.zeros(128, 512, dtype=HALF), torch.zeros(512, 512, dtype=HALF), None, ProductPlan(1, 64)
    )
    assert others(compiled) == ["product"]


@pytest.mark.parametrize("dtype", [HALF, WHOLE], ids=str)
def test_rowwise(dtype: torch.dtype, compiled: list[Any]) -> None:
    from codespec.backends.torch.cuda import rowwise_kernels as kernels

    rows, heads = torch.zeros(4, 3584, dtype=dtype), torch.zeros(4, 9, 128, dtype=dtype)
    cached, places = torch.zeros(3, 7, 512, 128, dtype=dtype), torch.zeros(4, dtype=torch.int64)
    launches: list[Callable[[], object]] = [
        lambda: kernels.add_rms_norm(rows, rows, rows[0], 1e-6),
        lambda: kernels.rms_norm(heads[:, :7], heads[0, 0], 1e-6),
        lambda: kernels.silu_mul(rows),
        lambda: kernels.rotate(heads[:, :7], heads[:, :1], heads[:, :1]),
        lambda: kernels.scatter(cached, cached, places, places, heads[:, :7], heads[:, :7]),
    ]
    for launch in launches:
        launch()
    check(compiled, len(launches), multiplies=False)
