"""Shared setup of the laboratory's tests: models are converted in this process."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

from codespec.store import conversion_cache
from codespec.store.conversion_cache import Conversion


@pytest.fixture(scope="package", autouse=True)
def conversions_in_this_process() -> Iterator[None]:
    """Convert models in this process: starting a separate one, which tests/store checks, takes most of the time."""

    def convert(conversion: Conversion, folder: Path) -> None:
        threads = torch.get_num_threads()
        with contextlib.redirect_stdout(io.StringIO()):  # shares of progress
            code = import_module(conversion.module).main([*conversion.arguments, str(folder), conversion.digest])
        torch.set_num_threads(threads)
        assert code == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion_cache, "run_converter", convert)
        yield
