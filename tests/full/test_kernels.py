"""The Triton kernels in the interpreter, each property with many examples."""

from __future__ import annotations

import importlib.util

import pytest

from tests.backends.cuda.test_kernels import interpret

pytestmark = pytest.mark.full


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_over_many_examples() -> None:
    done = interpret(examples=100)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
