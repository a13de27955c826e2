"""Finds source files that may be trained on: standard library, installed distributions, npm packages.

Knows where packages lie and what their metadata says; judges no file's content and writes nothing.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from codespec.errors import TrainingError
from codespec.training.holdout import HELD_OUT_DISTRIBUTIONS, HELD_OUT_STDLIB, SKIPPED_STDLIB
from codespec.training.licences import permissive_licence

LANGUAGES = {
    ".py": "python",
    ".js": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".ts": "typescript",
    ".c": "c",
    ".h": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".hpp": "cpp",
    ".pyx": "cython",
}


@dataclass(frozen=True, slots=True)
class Package:
    """One package: `licence` is None where the metadata is unclear or not permissive."""

    name: str
    version: str
    licence: str | None
    files: tuple[tuple[str, Path], ...]  # (path inside the package, path on disk)
    stated: str = ""


def _source_files(root: Path, skipped: Iterable[str]) -> tuple[tuple[str, Path], ...]:
    barred = set(skipped)
    found = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in barred]
        found += [Path(folder, name) for name in names if Path(name).suffix in LANGUAGES and name not in barred]
    return tuple((str(path.relative_to(root)), path) for path in sorted(found))


def stdlib_package() -> Package:
    """The running interpreter's standard library without its held-out parts."""
    root = Path(sysconfig.get_path("stdlib"))
    files = _source_files(root, (*SKIPPED_STDLIB, *HELD_OUT_STDLIB))
    held_files = {f"{name}.py" for name in HELD_OUT_STDLIB}
    version = ".".join(map(str, sys.version_info[:3]))
    return Package("python-stdlib", version, "PSF-2.0", tuple(f for f in files if f[0] not in held_files))


def header_package() -> Package:
    """The running interpreter's C headers."""
    files = _source_files(Path(sysconfig.get_path("include")), ())
    return Package("python-headers", ".".join(map(str, sys.version_info[:3])), "PSF-2.0", files)


def held_out_files() -> list[tuple[str, Path]]:
    """The standard library's held-out files, for evaluation; in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        (f"{name}/{inside}", path)
        for name in HELD_OUT_STDLIB
        for inside, path in _source_files(root / name, ("test", "tests", "__pycache__"))
    ]


def installed_packages(folder: Path, *, required: Iterable[str] = ()) -> Iterator[Package]:
    """Distributions installed in a site-packages folder, by name.

    Raises TrainingError if a `required` one is missing or its licence is unclear.
    """
    wanted = {name.lower() for name in required}
    for dist in sorted(distributions(path=[str(folder)]), key=lambda d: str(d.metadata["Name"]).lower()):
        package = _from_distribution(dist)
        if package.name.lower() in wanted:
            wanted.discard(package.name.lower())
            refuse_unclear(package)
        yield package
    if wanted:
        names = ", ".join(sorted(wanted))
        raise TrainingError(f"Not installed in {folder}: {names}; install them there first.")


def refuse_unclear(package: Package) -> None:
    """Raise TrainingError if the package's licence does not plainly permit training."""
    if package.licence is None:
        stated = package.stated or "nothing"
        raise TrainingError(
            f"The licence of package '{package.name}' is not plainly permissive (metadata says: {stated}); "
            "leave it out of the corpus."
        )


def _field(dist: Distribution, name: str) -> str | None:
    return str(dist.metadata[name]) if name in dist.metadata else None


def _from_distribution(dist: Distribution) -> Package:
    meta = dist.metadata
    classifiers = [c for c in meta.get_all("Classifier") or [] if c.startswith("License")]
    expression, free_text = _field(dist, "License-Expression"), _field(dist, "License")
    name = str(meta["Name"])
    licence = permissive_licence(expression, free_text, classifiers)
    stated = expression or "; ".join(classifiers) or " ".join((free_text or "").split())[:80]
    held = name.lower() in HELD_OUT_DISTRIBUTIONS
    files = [] if held else [f for f in dist.files or [] if f.suffix in LANGUAGES and ".." not in f.parts]
    located = tuple((str(f), Path(str(dist.locate_file(f)))) for f in sorted(files))
    return Package(name, dist.version, licence, located, "held out" if held else stated)


def npm_packages(root: Path) -> Iterator[Package]:
    """npm packages below a `node_modules` folder, nested ones on their own."""
    for manifest in sorted(root.rglob("node_modules/*/package.json")) + sorted(root.glob("*/package.json")):
        try:
            meta = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError):
            continue  # Without readable metadata there is no clear licence, so it is no candidate at all.
        if not isinstance(meta, dict) or "name" not in meta:
            continue
        stated = meta["license"] if isinstance(meta.get("license"), str) else ""
        files = _source_files(manifest.parent, ("node_modules", "test", "tests", "dist", "docs"))
        licence = permissive_licence(stated, None, ())
        yield Package(f"npm:{meta['name']}", str(meta.get("version", "")), licence, files, stated)
