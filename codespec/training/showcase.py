"""Ten (or so) completions at held-out places, as Markdown, chosen by rule and by nobody's hand.

The rule: documents evenly spaced over the sorted held-out files; in each the line of code that a hash of its name
tosses; the cursor behind the line's indent or behind one to three quarters of it; the text after the cursor's line is
given, the completion ends where an editor would end it. Knows texts, no model.
"""

from __future__ import annotations

from codespec.training.corpus import Document
from codespec.training.gaps import Gap, line_gaps, spread
from codespec.training.held_out import HeldOut
from codespec.training.infilling import Complete, infill_request, is_exact

LINES_ABOVE = 2
FENCE = "````"


def showcase(complete: Complete, held_out: HeldOut, count: int, *, seed: int = 0) -> str:
    """Markdown of `count` completions; ⟨ and ⟩ stand around what was written."""
    documents: list[Document] = [document for found in held_out.rows.values() for document in found]
    gaps = spread(documents, count, line_gaps(seed))
    done = [complete([infill_request(gap, "auto")])[0] for gap in gaps]
    return "\n\n".join(_entry(gap, one.text) for gap, one in zip(gaps, done, strict=True))


def _entry(gap: Gap, written: str) -> str:
    above = "\n".join(gap.prefix.split("\n")[-1 - LINES_ABOVE :])
    same = ", as in the file" if is_exact(written, gap.answer) else ""
    place = f"{gap.package} `{gap.path}`, line {gap.line}{same}"
    return f"{place}\n\n{FENCE}{gap.language}\n{above}⟨{written.rstrip()}⟩\n{FENCE}"
