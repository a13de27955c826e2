"""Markers that a model writes as text, because it met them as text: none of any family is shown."""

from __future__ import annotations

import pytest

from codespec.text.ending import Ending, markers_beside
from codespec.text.fim_templates import _FAMILIES

SPELLED = {mark.removeprefix("\u2581") for family in _FAMILIES for mark in family.tokens} - {
    "<PRE>",
    "<SUF>",
    "<MID>",
    "[PREFIX]",
    "[SUFFIX]",
}  # these are tags, type parameters and words of ordinary text


@pytest.mark.parametrize("mark", sorted(SPELLED))
def test_a_completion_ends_before_a_marker(mark: str) -> None:
    ending = Ending("block", None, "x = ", "")
    for byte in f"first + second{mark}third\n".encode():
        ending.advance(bytes([byte]))
        assert ending.certain <= len("first + second")
    ending.finish()
    assert ending.cut == len("first + second")


@pytest.mark.parametrize("mark", sorted(SPELLED))
def test_a_text_about_markers_may_go_on(mark: str) -> None:
    assert mark.encode() not in markers_beside(f'MARK = "{mark}"\n', "")
