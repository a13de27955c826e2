"""Where a text that is still growing may be cut so that it can be shown. Knows characters; knows no language."""

from __future__ import annotations

import re

# Within a word, and with a sign at the end that joins characters, more would change what is there.
_OPEN = re.compile(r"(?:[\w$\r]|\S?[\u200d\ufe0f])+\Z")


def safe(text: str) -> str:
    """The longest beginning that ends between two words and holds no line that has only begun with white space."""
    cut = _OPEN.sub("", text)
    if not cut.strip():
        return ""
    lines = cut.rstrip(" \t")
    return lines.rstrip() if lines.endswith("\n") else cut


def one_line(typed: str, rest: str) -> str:
    """What is typed and the first line behind it that shows anything, for a list of one-line labels."""
    first, *lines = rest.splitlines() or [""]
    if first.strip():
        return typed + (first.rstrip() if typed else first.strip())
    shown = next((line.strip() for line in lines if line.strip()), "")
    return f"{typed} {shown}".strip()
