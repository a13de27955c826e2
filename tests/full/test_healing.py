"""Measure token healing: exact match of single-line completions with the cursor inside a word, healed and not.

Writes docs/healing.json. The positions are the middles of the first long words of evenly spaced held-out lines.
"""

from __future__ import annotations

import re

import pytest
from codespec_lab.corpus.standard_library import held_out_files

from codespec.api.types import CompletionRequest
from codespec.engine.engine import Engine
from tests.full.report import write_report

pytestmark = pytest.mark.full
PLACES = 300
WORD = re.compile(r"[A-Za-z_]{6,}")
AROUND = 30


def places() -> list[tuple[str, str, str]]:
    """Return (text before, rest of the line, text from the line's end on) for PLACES cursors inside a word."""
    found = []
    for _, file in held_out_files():
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for number in range(AROUND, len(lines) - 1, 10):
            line = lines[number].rstrip("\n")
            word = WORD.search(line)
            if word and not line.lstrip().startswith("#"):
                cursor = (word.start() + word.end()) // 2
                before = "".join(lines[number - AROUND : number]) + line[:cursor]
                found.append((before, line[cursor:], "\n" + "".join(lines[number + 1 : number + 1 + AROUND])))
    return found[:: max(1, len(found) // PLACES)][:PLACES]


def test_healing_does_not_hurt() -> None:
    engine = Engine.load(max_batch=8)
    asked = places()
    rows = {}
    for heal in (False, True):
        requests = [CompletionRequest(prefix=p, suffix=s, max_tokens=32, shape="line", heal=heal) for p, _, s in asked]
        done = [c for i in range(0, len(requests), 8) for c in engine.complete(requests[i : i + 8])]
        exact = sum(c.text.strip() == rest.strip() for c, (_, rest, _) in zip(done, asked, strict=True))
        word = [re.match(r"\w*", rest) for _, rest, _ in asked]
        words = sum(c.text.startswith(w[0]) for c, w in zip(done, word, strict=True) if w)
        rows["healed" if heal else "not healed"] = {"places": len(asked), "exact_lines": exact, "exact_words": words}
    write_report("healing", "make test-full", rows)
    assert rows["healed"]["exact_words"] >= rows["not healed"]["exact_words"]
