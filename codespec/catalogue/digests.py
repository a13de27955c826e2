"""Checksums: what a file is, and that it is what its source says. A file that is not is deleted."""

from __future__ import annotations

import hashlib
from pathlib import Path

from codespec.errors import ModelError


def sha256_of(file: Path) -> str:
    """A file's SHA-256."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def git_hash_of(file: Path) -> str:
    """A file's hash as git names its contents, which is how the hub states small files."""
    digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_file(file: Path, expected: str, label: str) -> None:
    """Deletes the file and raises ModelError if it has not the SHA-256 (or, with 40 digits, the git hash) expected."""
    kind, found = ("SHA-256", sha256_of(file)) if len(expected) == 64 else ("git hash", git_hash_of(file))
    if found != expected:
        file.unlink()
        raise ModelError(
            f"{label} has another {kind} than it must have ({found[:16]}… instead of {expected[:16]}…) and "
            "was deleted: pull again, and do not use this source if it stays so."
        )
