"""Sites: the positions at which the benchmarks complete text. They come from a prompts file, from held-out projects,
from the standard library or, for `make demo`, from the project's own tests. A rule selects them, so that none is
hand-picked.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import random
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from codespec_grammars import find_language

from codespec.api.types import CompletionRequest, Snippet
from codespec.errors import ConfigError
from codespec.files import NotUtf8, decode_text
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.gaps import Finder, Gap, block_gaps, line_gaps, spread
from codespec_lab.corpus.held_out import HeldOut, read_held_out
from codespec_lab.corpus.standard_library import HELD_OUT_STDLIB

HELD_OUT = Path(".train/held_out.jsonl.gz")
CHECKOUT = Path(__file__).resolve().parents[3]
PROMPTS, PROJECTS = "prompts", "projects"  # kinds of sites: from a prompts file, from held-out code
KINDS = (PROMPTS, PROJECTS)
SITES_PER_FILE = 3  # so that a policy that starts untrained in each file can learn from earlier sites
MIN_LINES, PREFIX_LINES = 60, 40  # of a standard library module; of the text before and after the cursor
NEAR_CHARS = 800  # of the text before a cursor
SITES_PER_LANGUAGE = 200  # of held-out code, before they are shuffled
DEMO_SEED = SHUFFLE_SEED = 0


@dataclass(frozen=True, slots=True)
class Site:
    """A cursor in a file: the text before it, the text after it if any, and its location. `line` is 0 if unknown;
    `project` and `path` determine which other sites a policy may learn from.
    """

    prefix: str
    suffix: str = ""
    path: str = ""
    language: str = ""
    project: str = ""
    kind: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        """Return `path:line`, as editors and compilers write it."""
        return f"{self.path}:{self.line}" if self.line else self.path

    @property
    def near(self) -> str:
        """Return the end of the text before the cursor from the start of a line, at most NEAR_CHARS characters."""
        border = self.prefix.find("\n", max(0, len(self.prefix) - NEAR_CHARS))
        return self.prefix[border + 1 :] if len(self.prefix) > NEAR_CHARS else self.prefix

    def request(self, tokens: int, **settings: Any) -> CompletionRequest:
        """Return a request for `tokens` target tokens here; greedy unless the settings say otherwise."""
        return CompletionRequest(prefix=self.prefix, suffix=self.suffix, path=self.path, max_tokens=tokens, **settings)


def read_prompts(file: Path) -> list[Site]:
    """Read one JSON object a line with `prompt` and optionally `suffix` and `path`; a .gz file is decompressed. Raise
    ConfigError with the number of a bad line.
    """
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            lines = decode_text(opened.read()).split("\n")  # no other character ends a line of JSON
    except NotUtf8 as error:
        raise ConfigError(f"The prompts file {file} is not UTF-8 text ({error}): save it as UTF-8.") from error
    except (OSError, EOFError) as error:
        raise ConfigError(f"The prompts file {file} can't be read ({error}): check the path.") from error
    return [_parse(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def prompt_sites(file: Path, limit: int | None = None) -> list[Site]:
    """Return `limit` prompts of a file (default all), evenly spread, each as a separate project. Raise ConfigError if
    there are none, or with the number of a bad line.
    """
    prompts = read_prompts(file)
    if not prompts:
        raise ConfigError(f"The prompts file {file} is empty: write one JSON object per line.")
    return [prompts[number] for number in spread_numbers(len(prompts), limit or len(prompts))]


def held_out_sites(file: Path | None, limit: int) -> tuple[list[Site], str]:
    """Return `limit` sites a language, by the rule of `codespec train eval`, and a note for the report. They have
    no suffix. Raise TrainingError for a file that can't be read.
    """
    held_out = read_held_out_code(file)
    sites = [
        Site(gap.prefix, path=gap.path, language=gap.language, project=gap.package, kind=PROJECTS)
        for documents in held_out.rows.values()
        for gap in _held_out_gaps(documents, limit)
    ]
    if not sites:
        raise ConfigError("The held-out code contains no site to complete: name another file by --held-out.")
    return sites, held_out.note


def stdlib_sites(count: int) -> list[Site]:
    """Return `count` sites, evenly spread over the standard library's held-out modules in alphabetical order.

    Each module of at least MIN_LINES lines has one: halfway through the first line of code from the middle. The prefix
    begins PREFIX_LINES lines before it, and the suffix ends as many lines after it.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for name in HELD_OUT_STDLIB for file in (root / name).rglob("*.py") if "test" not in file.parts)
    sites = [site for file in files if (site := _stdlib_site(root, file)) is not None]
    if not sites:
        raise ConfigError("This Python has no standard library source to take prompts from: pass --prompts FILE.")
    step = max(1, len(sites) // count)
    return sites[::step][:count]


def demo_sites(count: int, checkout: Path = CHECKOUT) -> tuple[list[Site], str]:
    """Return `count` sites that no model has seen, and a short note on their source. Raise ConfigError if there is no
    source code at all.

    In a checkout they are in the project's own tests: files sorted by path, evenly spaced, with a block or a line in
    each that a hash of its name selects. An installed package has no tests and uses the standard library.
    """
    gaps = _test_gaps(checkout, count)
    if len(gaps) == count:
        return [Site(gap.prefix, gap.suffix, gap.path, line=gap.line) for gap in gaps], "the project's own tests"
    library = "held-out parts of the standard library, since the project's tests are not here"
    return stdlib_sites(count), library


def mixed_sites(held_out: Path | None, prompts: Path | None) -> tuple[list[Site], str]:
    """Return all sites in their order of use, alternating between the two lists if both are given, and a note for the
    report. Without any file, read held-out code from the default path of `codespec train corpus`.
    """
    lists, notes = [], []
    if prompts is not None:
        lists.append(_shuffled(prompt_sites(prompts)))
    if held_out is not None or prompts is None:
        sites, note = held_out_sites(held_out, SITES_PER_LANGUAGE)
        lists.append(_shuffled(sites))
        notes += [note] if note else []
    count = min(map(len, lists))
    sites = [found[turn] for turn in range(count) for found in lists]
    if not sites:
        raise ConfigError("No prompt has any text: name others by --prompts or --held-out.")
    return sites, "; ".join(notes)


def serve_sites(held_out: Path | None, prompts: Path | None, count: int) -> tuple[list[Site], str]:
    """Return `count` sites and a note for the report: lines in all languages in turn, with text on both sides, or a
    file's prompts, evenly spread. Raise TrainingError or ConfigError for a file that can't be read or is too short.
    """
    if prompts is not None:
        sites, note = prompt_sites(prompts, count), "prompts of a file"
    else:
        held_out_code = read_held_out_code(held_out)
        each, note = math.ceil(count / len(held_out_code.rows)), held_out_code.note
        gaps = (spread(documents, each, line_gaps(0)) for documents in held_out_code.rows.values())
        in_turn = (gap for turn in zip_longest(*gaps) for gap in turn if gap is not None)
        sites = [Site(gap.prefix, gap.suffix, gap.path) for gap in islice(in_turn, count)]
    if len(sites) < 2:
        raise ConfigError("There are fewer than two sites to complete: name a file with more.")
    return sites, note


def read_held_out_code(file: Path | None, prompts: Path | None = None) -> HeldOut:
    """Return the held-out code in `file`, or by default in the file written by `codespec train corpus`, or if that is
    missing the standard library's held-out parts. With `prompts`, add HumanEval's problems.
    """
    return read_held_out(file or HELD_OUT, named=file is not None, prompts=prompts)


def spread_numbers(total: int, count: int) -> list[int]:
    """Return `count` of the numbers below `total`, evenly spread."""
    step = max(1.0, total / max(1, count))
    return [int(number * step) for number in range(min(count, total))]


def digest(sites: Sequence[object]) -> str:
    """Return a digest that identifies a list of sites."""
    return hashlib.blake2b(repr(sites).encode(), digest_size=8).hexdigest()


def _shuffled(sites: Sequence[Site]) -> list[Site]:
    found = [site for site in sites if site.prefix.strip()]
    random.Random(SHUFFLE_SEED).shuffle(found)
    return found


def _parse(file: Path, number: int, line: str) -> Site:
    try:
        item = json.loads(line)
        path = item.get("path", "")
        language, project = find_language("", path) or "unknown", f"prompt {number}"
        return Site(item["prompt"], item.get("suffix", ""), path, language, project, PROMPTS)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}, line {number}: not a JSON object with `prompt`: correct that line.") from error


def _held_out_gaps(documents: Sequence[Document], limit: int) -> list[Gap]:
    find = line_gaps(0)
    fit = [document for document in documents if find(document, 0) is not None]
    chosen = [fit[number] for number in spread_numbers(len(fit), math.ceil(limit / SITES_PER_FILE))]
    return sorted(spread(chosen, limit, find), key=lambda gap: (gap.package, gap.path, gap.line))


def _stdlib_site(root: Path, file: Path) -> Site | None:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    if len(lines) < MIN_LINES:
        return None
    for number in range(len(lines) // 2, len(lines)):
        body = lines[number].strip()
        if len(body) >= 8 and not body.startswith(("#", '"', "'")):
            column = len(lines[number]) - len(lines[number].lstrip()) + len(body) // 2
            before = "".join(lines[max(0, number - PREFIX_LINES) : number]) + lines[number][:column]
            after = lines[number][column:] + "".join(lines[number + 1 : number + 1 + PREFIX_LINES])
            return Site(before, after, str(file.relative_to(root)))
    return None


def _test_gaps(checkout: Path, count: int) -> list[Gap]:
    """Return gaps in a checkout's tests; none for an installed package, where `tests` may belong to another package."""
    tests = checkout / "tests"
    if not ((checkout / "pyproject.toml").is_file() and (checkout / "conftest.py").is_file()):
        return []
    files = sorted(path for path in tests.rglob("*.py") if path.is_file())
    documents = [
        Document("tests", file.relative_to(checkout).as_posix(), "python", file.read_text("utf-8", "replace"))
        for file in files
    ]
    return spread(documents, count, _block_or_line(DEMO_SEED))


def _block_or_line(seed: int) -> Finder[Gap]:
    """Return a finder of the first lines of a block, or of a line in a file without a short block."""
    blocks, lines = block_gaps(seed), line_gaps(seed)
    return lambda document, turn: blocks(document, turn) or lines(document, turn)


def read_definitions(text: str, path: Path, root: Path) -> tuple[Snippet, ...]:
    """Return what files below `root` define, of those that a file with this text at `path` imports."""
    # late: a machine that only measures need not have the packages of the language server
    from codespec_lsp.imports import find_imported, import_rows, imported_names
    from codespec_lsp.outline import read_outline, split_all

    rows = import_rows(text.split("\n"))
    outlines = [(file.relative_to(root).as_posix(), read_outline(file)) for file in find_imported(rows, path, root)]
    first, others = split_all(outlines, imported_names(rows), "")
    return (*first, *others)
