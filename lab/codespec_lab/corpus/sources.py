"""Find source files by package: standard library, installed distributions, npm packages, Debian sources.

Reads metadata (names, versions, licences) and lists files, but does not read the source files.
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
from codespec.pair.sample import HELD_OUT_STDLIB
from codespec_lab.corpus.licences import LicenceRule, licence_of, parse_copyright, permissive_licence

LANGUAGES = {
    ".py": "python",
    ".js": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".jsx": "javascript",
    ".ts": "typescript",
    ".tsx": "typescript",
    ".c": "c",
    ".h": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cxx": "cpp",
    ".hpp": "cpp",
    ".hh": "cpp",
    ".go": "go",
    ".rs": "rust",
    ".java": "java",
    ".sh": "bash",
    ".pyx": "cython",
}

# Output folders and files of compilers and bundlers.
_BUILT_FOLDERS = (
    "node_modules",
    "dist",
    "build",
    "docs",
    "cjs",
    "esm",
    "esm5",
    "esm2015",
    "es",
    "es5",
    "umd",
    "test",
    "tests",
)
_BUILT_NAMES = (".d.ts", ".min.js", ".bundle.js", ".umd.js", ".pb.go", "_pb2.py")

# Never trained on, like the packages of `codespec.pair.sample`: whole projects, by their names in the registries
# (`packages.toml` fetches them). Benchmarks cut their prompts from these, so the list may only grow.
HELD_OUT_PROJECTS = frozenset(
    {
        "flask",
        "httpx",
        "click",
        "express",
        "zod",
        "@supabase/storage-js",
        "redux-thunk",
        "golang-github-spf13-cobra",
        "librust-clap-lex-dev",
        "librust-semver-dev",
        "librust-httparse-dev",
        "librust-strsim-dev",
        "spdlog",
        "jsoup",
        "jansson",
        "utf8proc",
    }
)

# Parts of the standard library that are tests, tables or generated text, not code worth learning.
_SKIPPED_STDLIB = (
    "site-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "encodings",
    "pydoc_data",
    "turtledemo",
    "__pycache__",
    "ensurepip",
    "config-3",
    "tkinter",
)


@dataclass(frozen=True, slots=True)
class Package:
    """One package. `licence` is None if the metadata is unclear or not permissive; `stated` is its original text."""

    name: str
    version: str
    licence: str | None
    files: tuple[tuple[str, Path], ...]  # (path inside the package, path on disk)
    stated: str = ""
    held_out: bool = False


def _source_files(root: Path, skipped: Iterable[str]) -> tuple[tuple[str, Path], ...]:
    barred = set(skipped)
    found = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in barred]
        written = [name for name in names if name not in barred and not name.endswith(_BUILT_NAMES)]
        found += [Path(folder, name) for name in written if Path(name).suffix in LANGUAGES]
    return tuple((str(path.relative_to(root)), path) for path in sorted(found))


def stdlib_package() -> Package:
    """Return the running interpreter's standard library without its held-out parts."""
    root = Path(sysconfig.get_path("stdlib"))
    files = _source_files(root, (*_SKIPPED_STDLIB, *HELD_OUT_STDLIB))
    held_files = {f"{name}.py" for name in HELD_OUT_STDLIB}
    version = ".".join(map(str, sys.version_info[:3]))
    return Package("python-stdlib", version, "PSF-2.0", tuple(f for f in files if f[0] not in held_files))


def header_package() -> Package:
    """Return the running interpreter's C headers."""
    files = _source_files(Path(sysconfig.get_path("include")), ())
    return Package("python-headers", ".".join(map(str, sys.version_info[:3])), "PSF-2.0", files)


def installed_packages(folder: Path, *, required: Iterable[str] = ()) -> Iterator[Package]:
    """Yield the distributions installed in a site-packages folder, sorted by name.

    Raises TrainingError if a `required` one is missing or its licence is unclear.
    """
    wanted = {name.lower() for name in required}
    for dist in sorted(distributions(path=[str(folder)]), key=lambda d: str(d.metadata["Name"]).lower()):
        package = _from_distribution(dist)
        if package.name.lower() in wanted:
            wanted.discard(package.name.lower())
            _require_permissive(package)
        yield package
    if wanted:
        names = ", ".join(sorted(wanted))
        raise TrainingError(f"Not installed in {folder}: {names}; install them there first.")


def _require_permissive(package: Package) -> None:
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
    files = [f for f in dist.files or [] if f.suffix in LANGUAGES and ".." not in f.parts]
    located = tuple((str(f), Path(str(dist.locate_file(f)))) for f in sorted(files))
    return Package(name, dist.version, licence, located, stated, name.lower() in HELD_OUT_PROJECTS)


def npm_packages(root: Path) -> Iterator[Package]:
    """Yield npm packages below a `node_modules` folder; nested packages are separate packages."""
    for manifest in sorted(root.rglob("node_modules/*/package.json")) + sorted(root.glob("*/package.json")):
        try:
            meta = json.loads(manifest.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError):
            continue  # No readable metadata means no clear licence.
        if not isinstance(meta, dict) or "name" not in meta:
            continue
        stated = meta["license"] if isinstance(meta.get("license"), str) else ""
        files = _source_files(manifest.parent, ("node_modules", *_BUILT_FOLDERS))
        name, licence = str(meta["name"]), permissive_licence(stated, None, ())
        held = name.lower() in HELD_OUT_PROJECTS
        yield Package(f"npm:{name}", str(meta.get("version", "")), licence, files, stated, held)


def debian_sources(root: Path) -> Iterator[Package]:
    """Yield Debian packages unpacked below `root`, each with the files that its copyright file makes permissive."""
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        found = [*folder.glob("*/debian/copyright"), *folder.glob("*/*/debian/copyright")]
        found += folder.glob("usr/share/doc/*/copyright")
        rules = parse_copyright(min(found).read_text(encoding="utf-8", errors="replace")) if found else []
        yield _from_debian(folder, rules)


def _from_debian(folder: Path, rules: list[LicenceRule]) -> Package:
    kept, licences, refused = [], set[str](), set[str]()
    for inside, path in _source_files(folder, ("debian", "vendor", "third_party", "testdata", "test", "tests")):
        named = _licences_of(Path(inside).parts, rules)
        if named and all(permissive_licence(licence, None, ()) for licence in named):
            kept.append((inside, path))
            licences |= named
        else:
            refused |= named
    licence = " AND ".join(sorted(licences)) or None
    stated = "; ".join(sorted(refused)) or "nothing machine-readable"
    version = next((path.name for path in sorted(folder.iterdir())), "")
    held = folder.name in HELD_OUT_PROJECTS
    return Package(f"debian:{folder.name}", version, licence, tuple(kept), stated, held)


def _licences_of(parts: tuple[str, ...], rules: list[LicenceRule]) -> set[str]:
    """Return the licences that the rules give a file.

    The source tree may start at any of its folders, so each is tried.
    """
    tails = ("/".join(parts[start:]) for start in range(len(parts)))
    return {licence for tail in tails if (licence := licence_of(tail, rules)) is not None}
