"""Prompts that clients put together with markers themselves: taken apart exactly, and source text left whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.text.fim_templates import ReadyMade, split_ready_made
from tests.text.test_fim import FAMILIES

SPELLED = {name: shape for name, (_, shape) in FAMILIES.items() if name != "codellama"}
SOURCE = st.text(st.sampled_from("ab \n\t<>|[]é\U0001f600"), max_size=40)


def spell(family: str, prefix: str, suffix: str) -> str:
    tokens, shape = FAMILIES[family]
    marks = {"P": tokens[0], "S": tokens[1], "M": tokens[2] if "{M}" in shape else ""}
    for mark in marks:
        shape = shape.replace(f"{{{mark}}}", f"\0{mark}")
    shape = shape.replace("p", "\1").replace("s", "\2")
    for mark, token in marks.items():
        shape = shape.replace(f"\0{mark}", token)
    return shape.replace("\1", prefix).replace("\2", suffix)


@pytest.mark.parametrize("family", SPELLED)
@given(prefix=SOURCE, suffix=SOURCE)
@settings(max_examples=25)
def test_every_family_comes_apart(family: str, prefix: str, suffix: str) -> None:
    assert split_ready_made(spell(family, prefix, suffix)) == ReadyMade(prefix, suffix)


def test_other_files_come_along() -> None:
    before = "<|repo_name|>demo\n<|file_sep|>a.py\nx = 1\n<|file_sep|>src/b.py\n"
    found = split_ready_made(before + spell("qwen", "p", "s"))
    assert found == ReadyMade("p", "s", (("a.py", "x = 1\n"),))


@given(SOURCE)
def test_text_without_markers_is_no_prompt(text: str) -> None:
    assert split_ready_made(text) is None


@pytest.mark.parametrize(
    "text",
    [
        'MARKERS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")\n',
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>c",
        "<|fim_prefix|>a<|fim_prefix|>b<|fim_suffix|>c<|fim_middle|>",
        "<|fim_suffix|>a<|fim_prefix|>b<|fim_middle|>",
        "<|fim_prefix|>a<|fim_suffix|>b",
    ],
)
def test_source_text_that_mentions_markers_is_no_prompt(text: str) -> None:
    assert split_ready_made(text) is None
