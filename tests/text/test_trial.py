"""Regular expressions that never finish are detected in a process that can be killed; real ones pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codespec.api.config import SHIPPED
from codespec.backends.gguf.tokenizer import FAMILIES
from codespec.errors import TokenizerError
from codespec.text.tokenizer_json import KNOWN, try_out


def split(*patterns: str) -> dict[str, Any]:
    parts = [{"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False} for one in patterns]
    return {"type": "Sequence", "pretokenizers": parts}


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(?:x|xx|x?)+y", r"(\w+\s?)+;", r"(z*)*\z"])
def test_what_does_not_end_is_refused(pattern: str) -> None:
    with pytest.raises(TokenizerError, match=r"the tokenizer.s regular expression .*: choose another model"):
        try_out(split(pattern))


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(TokenizerError, match="regular expression"):
        try_out(split("(("))


def test_real_ones_pass() -> None:
    """All expressions that GGUF files are converted to, and those that are not tried elsewhere."""
    try_out(split(*KNOWN, *(one for family in FAMILIES for one in family.splits)))
    try_out(None)
    try_out({"type": "ByteLevel"})


def test_the_starter_pair_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_: pytest.fail("it is tried at each start"))
    files = list(SHIPPED.glob("*/tokenizer.json"))
    assert files, "the pair has moved"
    for file in files:
        try_out(json.loads(file.read_text(encoding="utf-8"))["pre_tokenizer"])
