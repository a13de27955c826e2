"""Exact mode under lower instruction sets: the same tests in child processes with the kernels of older processors.

Environment variables hide processor features,
and torch's libraries read them once, before first use, hence the processes. Each imitates an existing processor. One
that would hide nothing here is skipped: its kernels are this processor's own, which the same tests cover anyway.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from codespec.backends.torch.linear import can_pack
from codespec.store.machine import HIDING, processor
from tests.cli.conftest import command

__all__ = ["command"]
ROOT = Path(__file__).parents[2]
SECONDS = 3600  # against hanging only
ONEDNN, ATEN = "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"
# The variables of an older processor, and the features they hide; only tested if this processor has one of these.
IMITATED: tuple[tuple[dict[str, str], set[str]], ...] = (
    ({ONEDNN: "AVX512_CORE_BF16"}, {"amx_bf16", "amx_tile", "avx512_fp16"}),
    ({ONEDNN: "AVX512_CORE"}, {"amx_bf16", "amx_tile", "avx512_fp16", "avx512_bf16"}),
    ({ONEDNN: "AVX2", ATEN: "avx2"}, {"avx512f"}),
)
MIN = IMITATED[-1][0]
LOWERED = [variables for variables, hidden in IMITATED if hidden & {*processor().features}] or [MIN]
# The processor feature each instruction set needs, and oneDNN's own name for it as a limit.
NAMES = {
    "AVX2": ("avx2", "isa:Intel AVX2\n"),
    "AVX512_CORE": ("avx512f", "isa:Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions\n"),
    "AVX512_CORE_BF16": ("avx512_bf16", "isa:Intel AVX-512 with Intel DL Boost and bfloat16 support\n"),
}
CHOSEN = (
    "tests/backends/test_instruction_sets.py::test_the_variables_are_in_effect",
    "tests/backends/test_linear.py::test_equals_linear",
    "tests/backends/test_linear.py::test_a_row_does_not_depend_on_the_others",
    "tests/backends/test_linear.py::test_a_depth_that_lets_one_row_reach_another_is_padded",
    "tests/backends/test_seam.py::test_ragged_chunks_equal_eager[llama]",
    "tests/startup/test_batch_invariance.py::test_a_fast_model_is_not_checked",
    "tests/backends/test_exact.py::test_rounds[llama-float32]",
    "tests/backends/test_exact.py::test_rounds[llama-bfloat16]",
    "tests/backends/test_exact.py::test_beyond_one_block_of_keys[llama groups 1 size 64-bfloat16]",
)
# Products whose results depend on the number of rows, which fast mode does not fix.
PLANTED = """
import sys
import pytest

class Fault:
    def pytest_collection_finish(self):
        import torch
        from codespec.backends.torch.linear import TiledLinear
        from tests import tiny_models

        plain = TiledLinear.multiply
        off = {torch.float32: 2.0**-19, torch.bfloat16: 2.0**-7}
        wrap = tiny_models.wrap

        def fast(*words, **settings):
            model = wrap(*words, **settings)
            model.set_exact(False)
            return model

        TiledLinear.multiply = lambda self, rows: plain(self, rows) * (1.0 + off[rows.dtype] * (len(rows) > 3))
        tiny_models.wrap = fast

sys.exit(pytest.main(sys.argv[1:], plugins=[Fault()]))
"""


def run_tests(
    tests: tuple[str, ...], variables: dict[str, str], program: tuple[str, ...] = ("-m", "pytest")
) -> subprocess.CompletedProcess[str]:
    """Run these tests in a process with these variables, without inheriting any of them."""
    outside = (*HIDING, "PYTEST_ADDOPTS")
    inherited = {name: value for name, value in os.environ.items() if name not in outside}
    return subprocess.run(
        [sys.executable, *program, "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**inherited, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=SECONDS,
    )


@pytest.mark.parametrize(
    "variables",
    [pytest.param(each, marks=() if each is LOWERED[-1] else pytest.mark.full) for each in LOWERED],
    ids=lambda variables: " ".join(map("=".join, variables.items())),
)
def test_exact_under(variables: dict[str, str]) -> None:
    done = run_tests(CHOSEN, variables)
    assert done.returncode == 0, done.stdout
    assert f"{len(CHOSEN)} passed" in done.stdout, done.stdout


def test_the_variables_are_in_effect(capfd: pytest.CaptureFixture[str]) -> None:
    """In a child process: its kernels match the variables. Without any there is nothing to check."""
    least = os.environ.get(ONEDNN, "")
    needed, name = NAMES.get(least, ("", "isa:"))
    if least and needed in processor().features:
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            assert can_pack(torch.float32) == ""
        assert name in capfd.readouterr().out
        assert bool(can_pack(torch.bfloat16)) is (least == "AVX2")
    capability = os.environ.get(ATEN, "")
    if {"avx2": "avx2", "avx512": "avx512f"}.get(capability) in processor().features:
        assert torch.backends.cpu.get_cpu_capability() == capability.upper()


def test_a_planted_fault_turns_a_child_red() -> None:
    case = "tests/backends/test_exact.py::test_rounds[llama-bfloat16]"
    assert case in CHOSEN
    done = run_tests((case,), {ONEDNN: "AVX2"}, ("-c", PLANTED))
    assert done.returncode == pytest.ExitCode.TESTS_FAILED and "1 failed" in done.stdout, done.stdout
    assert "assert replay.play(covering(replay.length)) == 0.0" in done.stdout, done.stdout
