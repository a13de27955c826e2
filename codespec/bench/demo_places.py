"""Where `make demo` completes: places in files that no model has seen, chosen by rule, so that nobody picks them.

In a checkout they are in the project's own tests: the files sorted by path, evenly spaced, and in each a block or a
line that a hash of its name chooses. Where there are no tests, as in an installed package, they are in the held-out
parts of the standard library. Knows files; knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from codespec.bench.prompts import stdlib_prompts
from codespec.corpus.documents import Document
from codespec.corpus.gaps import Finder, Gap, block_gaps, line_gaps, spread

CHECKOUT = Path(__file__).resolve().parents[2]
SEED = 0
NEAR_CHARS = 800  # what is read before a measured text: more of it would measure the reading


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """A cursor in a file: the text before it, and the text behind what is missing there; `line` is 0 if not known."""

    prefix: str
    suffix: str
    path: str
    line: int = 0

    @property
    def name(self) -> str:
        """As editors and compilers write it."""
        return f"{self.path}:{self.line}" if self.line else self.path

    @property
    def near(self) -> str:
        """The end of the text before the cursor, from a line's start."""
        border = self.prefix.find("\n", max(0, len(self.prefix) - NEAR_CHARS))
        return self.prefix[border + 1 :] if len(self.prefix) > NEAR_CHARS else self.prefix


def find_demo_places(count: int, checkout: Path = CHECKOUT) -> tuple[list[DemoPlace], str]:
    """`count` places and, in a few words, where they are from. ConfigError where there is no source code at all."""
    found = [DemoPlace(gap.prefix, gap.suffix, gap.path, gap.line) for gap in _gaps(checkout, count)]
    if len(found) == count:
        return found, "the project's own tests"
    library = [DemoPlace(prompt.prefix, prompt.suffix, prompt.path) for prompt in stdlib_prompts(count)]
    return library, "held-out parts of the standard library, since the project's tests are not here"


def _gaps(checkout: Path, count: int) -> list[Gap]:
    """Of a checkout only: among installed packages a folder `tests` may be anybody's."""
    tests = checkout / "tests"
    if not ((checkout / "pyproject.toml").is_file() and (tests / "conftest.py").is_file()):
        return []
    files = sorted(path for path in tests.rglob("*.py") if path.is_file())
    documents = [
        Document("tests", file.relative_to(checkout).as_posix(), "python", file.read_text("utf-8", "replace"))
        for file in files
    ]
    return spread(documents, count, _block_or_line(SEED))


def _block_or_line(seed: int) -> Finder[Gap]:
    """The first lines of a block, or a line in a file that has no short block."""
    blocks, lines = block_gaps(seed), line_gaps(seed)
    return lambda document, turn: blocks(document, turn) or lines(document, turn)
