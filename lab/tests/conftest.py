"""Shared setup of the laboratory's tests: models are converted in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from codespec.store import conversions
from tests.converters import convert_here


@pytest.fixture(scope="package", autouse=True)
def conversions_in_this_process() -> Iterator[None]:
    """Convert models in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversions, "run_converter", convert_here)
        yield
