"""Use one thread in every model test, because two stall on shared cores."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

from codespec.store import conversion_cache
from codespec.store.conversion_cache import Conversion


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def converters_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run converters without their own process, whose imports take seconds; tests/store tests the process."""

    def run(conversion: Conversion, folder: Path) -> None:
        main = import_module(conversion.module).main
        assert main([*conversion.arguments, str(folder), conversion.digest]) == 0

    monkeypatch.setattr(conversion_cache, "run_converter", run)
