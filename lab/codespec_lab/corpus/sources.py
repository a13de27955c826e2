"""Find source files by package: standard library, installed distributions, npm packages, Debian sources.

Reads metadata (names, versions, licences) and lists files, but does not read the source files. The licence metadata
decides whether a package, or a file of a Debian source package, may be trained on.
"""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from codespec.errors import TrainingError
from codespec_lab.corpus.standard_library import HELD_OUT_STDLIB

PERMISSIVE = frozenset(
    {
        "MIT",
        "BSD-2-CLAUSE",
        "BSD-3-CLAUSE",
        "BSD",
        "APACHE-2.0",
        "ISC",
        "PSF-2.0",
        "MIT-0",
        "0BSD",
        "BLUEOAK-1.0.0",
        "ZLIB",
        "UNLICENSE",
        "CC0-1.0",
        "PYTHON-2.0",
        "MIT-CMU",
        "HPND",
        "BSL-1.0",
        "CURL",
        "X11",
        "LIBPNG",
        "POSTGRESQL",
    }
)

_CLASSIFIERS = {
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache Software License": "APACHE-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "UNLICENSE",
}

# Spellings of the old free-text `License` field. A long field contains the licence's text: do not guess from it.
_SPELLINGS = {
    "MIT": "mit; mit license; the mit license; expat",
    "BSD": "bsd; bsd license",
    "BSD-3-CLAUSE": "new bsd; new bsd license; bsd-3-clause; 3-clause bsd; 3-clause bsd license; bsd 3-clause; "
    "bsd 3-clause license; modified bsd license",
    "BSD-2-CLAUSE": "bsd-2-clause",
    "APACHE-2.0": "apache; apache 2; apache 2.0; apache-2.0; apache 2.0 license; apache license 2.0; "
    "apache license, version 2.0; apache license version 2.0",
    "ISC": "isc",
    "PSF-2.0": "psf; psf license; python software foundation license",
}
_FREE_TEXT = {text: licence for licence, texts in _SPELLINGS.items() for text in texts.split("; ")}

# Debian's short names that differ from SPDX.
_SPDX = {
    "expat": "MIT",
    "go": "BSD-3-Clause",
    "bsd-3-go": "BSD-3-Clause",
    "bsd-3-clauses": "BSD-3-Clause",
    "bsd-3-clause~google": "BSD-3-Clause",
    "boost-1.0": "BSL-1.0",
    "apache-2": "Apache-2.0",
    "psf-2": "PSF-2.0",
}
_ENDINGS = {
    "python": ".py",
    "javascript": ".js .mjs .cjs .jsx",
    "typescript": ".ts .tsx",
    "c": ".c .h",
    "cpp": ".cc .cpp .cxx .hpp .hh",
    "go": ".go",
    "rust": ".rs",
    "java": ".java",
    "bash": ".sh",
    "cython": ".pyx",
}
LANGUAGES = {ending: language for language, endings in _ENDINGS.items() for ending in endings.split()}
# Output folders and files of compilers and bundlers.
_BUILT_FOLDERS = [
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
]
_BUILT_NAMES = (".d.ts", ".min.js", ".bundle.js", ".umd.js", ".pb.go", "_pb2.py")
# Never trained on, like the packages of `standard_library`: whole projects, by their names in the registries
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
_SKIPPED_STDLIB = [
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
]


def permits_expression(expression: str) -> bool:
    """Return whether an SPDX expression allows a permissive choice: every part of an AND, or one part of an OR."""
    flat = expression.replace("(", " ").replace(")", " ").strip()
    if not flat or re.search(r"\bWITH\b", flat):
        return False
    if re.search(r"\bAND\b", flat) and re.search(r"\bOR\b", flat):
        return all(part in PERMISSIVE for part in re.split(r"\s+(?:AND|OR)\s+", flat.upper()))
    if re.search(r"\bOR\b", flat):
        return any(part.strip().upper() in PERMISSIVE for part in re.split(r"\bOR\b", flat))
    return all(part.strip().upper() in PERMISSIVE for part in re.split(r"\bAND\b", flat))


def permissive_licence(expression: str | None, free_text: str | None, classifiers: Iterable[str]) -> str | None:
    """Return the licence if the metadata clearly names a permissive one; None if not, or if it is contradictory."""
    if expression:
        return expression if permits_expression(expression) else None
    named = [c.rsplit(" :: ", 1)[-1] for c in classifiers if c.startswith("License :: ")]
    named = [name for name in named if name != "OSI Approved"]
    if named:
        known = [_CLASSIFIERS.get(name) for name in named]
        return " AND ".join(sorted({k for k in known if k})) if all(known) else None
    text = " ".join((free_text or "").lower().split()).rstrip(".")
    if text in _FREE_TEXT:
        return _FREE_TEXT[text]
    return free_text if free_text and permits_expression(free_text) else None


@dataclass(frozen=True, slots=True)
class LicenceRule:
    """Rule that puts files whose path matches `pattern` under `licence`, an SPDX-like expression."""

    pattern: re.Pattern[str]
    licence: str


def parse_copyright(text: str) -> list[LicenceRule]:
    """Return the rules of a Debian copyright file (DEP 5), in order; empty if it is not machine-readable."""
    if not re.match(r"Format(-Specification)?:", text.lstrip(), re.I):
        return []
    rules = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        fields = _parse_fields(paragraph)
        if "files" in fields and "license" in fields:
            licence = _to_spdx(fields["license"].partition("\n")[0])
            rules += [LicenceRule(_glob(glob), licence) for glob in fields["files"].split()]
    return rules


def licence_of(path: str, rules: list[LicenceRule]) -> str | None:
    """Return the licence of the last rule that matches a path in the source tree, or None if none matches."""
    return next((rule.licence for rule in reversed(rules) if rule.pattern.fullmatch(path)), None)


def _parse_fields(paragraph: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in paragraph.splitlines():
        head, colon, rest = line.partition(":")
        if colon and re.fullmatch(r"[A-Za-z-]+", head):
            name = head.lower()
            found[name] = rest.strip()
        elif name and line[:1].isspace():
            found[name] += "\n" + line.strip()
    return found


def _to_spdx(name: str) -> str:
    words = re.sub(r"[,/]|\band/or\b", " or " if "/" in name else " ", name).split()
    upper = {"or": "OR", "and": "AND", "with": "WITH"}
    return " ".join(upper.get(word.lower()) or _SPDX.get(word.lower(), word) for word in words)


def _glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob: `*` matches any characters, slashes included; `?` matches one character."""
    return re.compile("".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern), re.S)


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
