"""The library from Python: products against the file's own numbers, and one sentence for what does not fit."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from codespec_native import build, library
from codespec_native.build import library_file
from codespec_native.library import FORMATS, Bytes, Matrix, NativeError, Pool, find_path, paths, rotary_tables
from gguf.quants import dequantize, quantize

QUANTIZED = [
    kind for kind, (name, *_) in FORMATS.items() if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16")
]
# gguf does not write k-quants: random blocks, whose float16 numbers lie at these bytes.
SCALES = {10: (80, 82), 11: (108,), 12: (0, 2), 13: (0, 2), 14: (208,), 20: (0,)}


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool(2)


def random_blocks(kind: int, outputs: int, inputs: int) -> Bytes:
    _, unit, each = FORMATS[kind]
    rng = np.random.default_rng(kind)
    if kind in QUANTIZED:
        return np.ascontiguousarray(
            quantize(rng.standard_normal((outputs, inputs)).astype(np.float32), gguf.GGMLQuantizationType(kind)).view(
                np.uint8
            )
        )
    blocks = rng.integers(0, 256, (outputs, inputs // unit, each), dtype=np.uint8)
    for at in SCALES[kind]:
        halves = (rng.random((outputs, inputs // unit, 1)) * 0.01 + 0.001).astype(np.float16)
        blocks[..., at : at + 2] = halves.view(np.uint8)
    return np.ascontiguousarray(blocks.reshape(outputs, -1))


@pytest.mark.parametrize("kind", [*QUANTIZED, *SCALES], ids=lambda kind: FORMATS[kind][0])
def test_product_is_that_of_the_files_numbers(kind: int, pool: Pool) -> None:
    """Only the rows are rounded: to 8 bits, so to about half a percent of a block's largest number."""
    outputs, inputs = 70, 1024
    data = random_blocks(kind, outputs, inputs)
    weights = dequantize(data, gguf.GGMLQuantizationType(kind)).reshape(outputs, inputs).astype(np.float64)
    rows = np.random.default_rng(1).standard_normal((19, inputs)).astype(np.float32)
    matrix = Matrix(pool, kind, outputs, inputs, data)
    product, true = matrix.multiply(rows, pool, find_path()), rows.astype(np.float64) @ weights.T
    assert product.shape == true.shape
    assert np.abs(product - true).max() < 0.06 * true.std()
    assert np.abs(product - true).mean() < 0.012 * true.std()
    for count in (1, 2, 7, 9, 16):
        assert np.array_equal(matrix.multiply(rows[:count], pool, find_path()), product[:count])
    for path in paths():
        assert np.array_equal(matrix.multiply(rows, Pool(1), find_path(path)), product), path


def test_float32_becomes_eight_bits(pool: Pool) -> None:
    weights = np.random.default_rng(2).standard_normal((32, 256)).astype(np.float32)
    rows = np.random.default_rng(3).standard_normal((3, 256)).astype(np.float32)
    product = Matrix(pool, 0, 32, 256, np.ascontiguousarray(weights.view(np.uint8))).multiply(rows, pool, find_path())
    assert np.abs(product - rows @ weights.T).max() < 0.03 * (rows @ weights.T).std()


def test_rotary_tables_are_those_of_the_formula() -> None:
    cosine, sine = rotary_tables(1e6, 64, 4096, factor=2.0)
    angles = np.arange(4096)[:, None] / 2.0 * 1e6 ** (-2.0 * np.arange(32) / 64)
    assert np.abs(cosine - np.cos(angles)).max() < 1e-7
    assert np.abs(sine - np.sin(angles)).max() < 1e-7


def test_without_a_compiler_and_without_zig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["build", "--out", str(tmp_path / "codespec.so")])
    message = f"There is no C compiler: install gcc or clang, or run `pip install {build.ZIG}`.\n"
    assert (build.main(), capsys.readouterr().err) == (2, message)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of a library of this test's own."""
    file = tmp_path / library_file().name
    monkeypatch.setattr(library, "library_file", lambda: file)
    library.load_library.cache_clear()
    yield file
    library.load_library.cache_clear()


def test_a_library_that_can_not_be_used_is_one_sentence(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = r": run `python -m codespec_native\.build`\.$"
    with pytest.raises(NativeError, match=rf"^The native kernels are not built \({installed.name} is missing\){fix}"):
        library.load_library()
    shutil.copy(library_file(), installed)
    data = bytearray(installed.read_bytes())
    data[18] = 0xB7 if data[18] != 0xB7 else 0x3E  # the processor in an ELF header: arm64, or x86-64
    installed.write_bytes(data)
    with pytest.raises(
        NativeError, match=rf"^The native kernels do not load on this machine \(.*{installed.name}.*{fix}"
    ):
        library.load_library()
    shutil.copy(library_file(), installed)
    monkeypatch.setattr(library, "sources_digest", lambda: "other sources")
    with pytest.raises(NativeError, match=rf"^The native kernels were built from another version's sources{fix}"):
        library.load_library()


def test_what_does_not_fit_is_one_sentence(pool: Pool) -> None:
    data = random_blocks(8, 16, 64)
    with pytest.raises(NativeError, match="A matrix has 1088 bytes: 17 rows of 64 inputs require 1156"):
        Matrix(pool, 8, 17, 64, data)
    with pytest.raises(NativeError, match=r"The GGUF format 16 is not supported: use one of F32, F16, Q4_0"):
        Matrix(pool, 16, 16, 64, data)
    with pytest.raises(NativeError, match="Rows of 48 inputs are not supported: Q8_0 needs a multiple of 32"):
        Matrix(pool, 8, 16, 48, data)
    with pytest.raises(NativeError, match="Rows of 896 inputs are not supported: Q4_K needs a multiple of 256"):
        Matrix(pool, 12, 16, 896, data)
    with pytest.raises(NativeError, match=r"Rows of shape \(2, 32\) don't fit a matrix of 64 inputs"):
        Matrix(pool, 8, 16, 64, data).multiply(np.zeros((2, 32), dtype=np.float32), pool, find_path())
    with pytest.raises(NativeError, match=r"This processor can't run the instruction set mmx: choose one of .*scalar"):
        find_path("mmx")
    with pytest.raises(NativeError, match="0 threads can't be started"):
        Pool(0)
