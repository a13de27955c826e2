"""Headers of weights whose sizes are within the file and whose evaluation would take hours or all memory."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from codespec.backends.gguf import header
from codespec.errors import ModelError
from codespec.store.model_folder import read_layout


def test_a_tensor_of_very_many_dimensions_is_refused_at_once(tmp_path: Path) -> None:
    entry = {"a": {"dtype": "F32", "shape": [(1 << 60) - 1] * 40_000, "data_offsets": [0, 0]}}
    text = json.dumps(entry).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    began = time.process_time()
    json.loads(text)
    parsed, began = time.process_time() - began, time.process_time()
    with pytest.raises(ModelError, match="truncated or corrupt"):
        read_layout(file)
    assert time.process_time() - began < 20 * parsed + 0.1


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf(*settings: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(settings)) + b"".join(settings)


def zeros(key: str, count: int) -> bytes:
    return text(key.encode()) + struct.pack("<IIQ", 9, 0, count) + bytes(count)


def test_lists_are_limited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file holds any number of them, and a number in Python is many times as large."""
    monkeypatch.setattr(header, "MAX_ELEMENTS", 100)
    file = tmp_path / "a.gguf"
    file.write_bytes(gguf(zeros("a", 50), zeros("b", 50)))
    assert header.read_header(file).items("b") == [0] * 50
    file.write_bytes(gguf(zeros("a", 50), zeros("b", 50), zeros("c", 1)))
    with pytest.raises(ModelError, match="ends within its header"):
        header.read_header(file)


def test_a_long_name_is_not_repeated_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(gguf(*[zeros("k" * 100_000, 1)] * 2))
    with pytest.raises(ModelError, match="occurs twice") as raised:
        header.read_header(file)
    assert len(str(raised.value)) < 400 + len(str(file))
