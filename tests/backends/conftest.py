"""Use one thread in every model test, because two stall on shared cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from codespec.store import conversions
from tests.converters import convert_here


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def converters_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run converters without their own process."""
    monkeypatch.setattr(conversions, "run_converter", convert_here)
