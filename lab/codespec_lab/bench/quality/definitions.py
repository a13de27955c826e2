"""Definitions from the files that a held-out file imports, found as codespec's language server does in a repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from codespec_lsp.imported_files import MOST_CHARACTERS
from codespec_lsp.imports import find_imported, import_rows
from codespec_lsp.outline_reader import read_outline

from codespec.types import Snippet
from codespec_lab.bench.quality.sites import PROJECT_KINDS, GapSite
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.held_out import HeldOut


def add_definitions(sites: Sequence[GapSite], held_out: HeldOut) -> list[GapSite]:
    """Return the sites; those in held-out code get the definitions that their files import from the same package."""
    packages: dict[str, list[Document]] = {}
    for documents in held_out.rows.values():
        for document in documents:
            packages.setdefault(document.package, []).append(document)
    with TemporaryDirectory(prefix="codespec-definitions-") as folder:
        roots = {}
        for number, name in enumerate(packages):
            roots[name] = Path(folder).resolve() / str(number)
            _write(roots[name], packages[name])
        return [
            replace(site, snippets=_snippets(site, roots[site.gap.package])) if site.kind in PROJECT_KINDS else site
            for site in sites
        ]


def _snippets(site: GapSite, root: Path) -> tuple[Snippet, ...]:
    """Return at most MOST_CHARACTERS of definitions, whole files only. The gap's own text is not read."""
    rows = import_rows((site.gap.before + site.gap.behind).split("\n"))
    found, left = [], MOST_CHARACTERS
    for path in find_imported(rows, root / site.gap.path, root):
        text = read_outline(path)
        if text and len(text) <= left:
            left -= len(text)
            found.append(Snippet(path.relative_to(root).as_posix(), text))
    return tuple(found)


def _write(root: Path, documents: Sequence[Document]) -> None:
    for document in documents:
        inside = PurePosixPath(document.path)
        if not inside.is_absolute() and ".." not in inside.parts:
            path = root / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(document.text, encoding="utf-8")
