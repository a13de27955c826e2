"""Kernels are launched on the device of their tensors, whichever device is current."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from codespec.backends.torch import loader
from codespec.backends.torch.cuda import graphs, launch
from codespec.backends.torch.cuda.launch import on_own_device

KERNELS = sorted(Path(graphs.__file__).parent.glob("*_kernels.py"))


def launches(function: ast.FunctionDef) -> bool:
    """Return whether the function calls kernel[grid](…)."""
    return any(isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) for node in ast.walk(function))


@pytest.mark.parametrize("file", KERNELS, ids=lambda file: file.stem)
def test_every_launcher_launches_on_its_own_device(file: Path) -> None:
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    found = [function for function in functions if launches(function)]
    assert found
    assert [[ast.unparse(name) for name in function.decorator_list] for function in found] == [
        ["on_own_device"] for _ in found
    ]


@pytest.mark.parametrize(("place", "entered"), [("cuda:0", []), ("cuda:1", ["cuda:1"]), ("cpu", [])])
def test_the_device_is_changed_where_it_is_another(
    place: str, entered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextmanager
    def device(given: torch.device) -> Any:
        seen.append(str(given))
        yield

    fake = SimpleNamespace(current_device=lambda: 0, device=device)
    monkeypatch.setattr(launch, "torch", SimpleNamespace(cuda=fake))
    tensor: Any = SimpleNamespace(device=torch.device(place))
    assert on_own_device(lambda tensor, number: number)(tensor, 3) == 3
    assert seen == entered


@pytest.mark.parametrize(("capability", "notes"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_an_old_gpu_is_told(capability: tuple[int, int], notes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert bool(loader.slow_products(torch.device("cuda"))) == notes
    assert not loader.slow_products(torch.device("cpu"))
