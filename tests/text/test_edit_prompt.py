"""Prompts of next edits: the ids are those of the text with its markers parsed, and source text is never a marker."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tokenizers import Tokenizer

from codespec.api.config import EDIT_FORMATS
from codespec.text.edit_formats import EditFormat, edit_formats, find_format
from codespec.text.edit_prompt import Change, EditContext, EditPrompt, build_edit_prompt
from codespec.text.tokenizer import TextTokenizer
from tests.toy_tokenizers import toy_backend

LINES = [f"row_{number} = {number}" for number in range(40)]
CHANGE = Change("a.py", 12, "row_12 = 0\n", "row_12 = 12\n")
CONTEXT = EditContext(path="a.py", language="python", lines=LINES, cursor=(12, 3), changes=[CHANGE])
SWEEP_8 = (  # rows 10 to 17 of LINES
    "<|file_sep|>original/a.py:11:18\nrow_10 = 10\nrow_11 = 11\nrow_12 = 0\n{rest}"
    "<|file_sep|>current/a.py:11:18\nrow_10 = 10\nrow_11 = 11\nrow<|cursor|>_12 = 12\n{rest}"
    "<|file_sep|>updated/a.py:11:18\nrow_10 = 10\n"
)
REST = "".join(f"{line}\n" for line in LINES[13:18])


@cache
def tokenizer(kind: str = "qwen") -> TextTokenizer:
    """Return a toy tokenizer with all control tokens of all formats."""
    backend = Tokenizer.from_str(toy_backend(kind).to_str())
    backend.add_special_tokens([name for form in edit_formats().values() for name in form.needs or form.markers])
    return TextTokenizer.from_backend(backend, eos_ids=frozenset({backend.get_vocab()["<|endoftext|>"]}))


def build(form: str | EditFormat, context: EditContext = CONTEXT, place: int = 12, **more: int) -> EditPrompt:
    chosen = edit_formats()[form] if isinstance(form, str) else form
    prompt = build_edit_prompt(tokenizer(), chosen, context, place, **{"most": 4096, "budget": 4096, **more})
    assert isinstance(prompt, EditPrompt), prompt
    return prompt


def test_the_setting_lists_the_formats() -> None:
    assert ("auto", "none", *edit_formats()) == EDIT_FORMATS


@pytest.mark.parametrize("name", edit_formats())
@pytest.mark.parametrize("kind", ["qwen", "gpt2", "llama2"])
def test_ids_are_those_of_the_text_with_its_markers_parsed(name: str, kind: str) -> None:
    speller, form = tokenizer(kind), edit_formats()[name]
    context = replace(CONTEXT, snippets=[("b.py", "x = 1\n")], problems=[(12, "bad\nname")])
    prompt = build_edit_prompt(speller, form, context, 12, most=4096, budget=4096)
    assert isinstance(prompt, EditPrompt)
    spelled = {number: marker for marker, number in speller.vocab.items() if number in speller.special_ids}
    written = "".join(spelled.get(one) or speller.decode_bytes([one]).decode("utf-8", "replace") for one in prompt.ids)
    for bos in speller.bos_ids:
        written = written.removeprefix(spelled[bos])
    written = written.removeprefix(" " * (speller.dummy_prefix and written.startswith(" ")))
    assert [*speller.bos_ids, *speller.encode_with_specials(written)] == prompt.ids
    assert prompt.text.encode() == speller.decode_bytes(prompt.ids, at_start=True)
    assert ("b.py" in written) == bool(form.snippet) and "row_13 = 13" in written


def test_a_prompt_of_sweep_s_server() -> None:
    prompt = build("sweep-server", budget=0)
    expected = "<|file_sep|>a.py\n" + SWEEP_8.format(rest=REST)
    assert prompt.ids == tokenizer().encode_with_specials(expected)
    assert (prompt.start_row, list(prompt.window.lines), prompt.window.given) == (10, LINES[10:18], 1)
    assert prompt.prediction == "".join(f"{line}\n" for line in LINES[11:18])


def test_a_prompt_of_sweep_s_card_has_the_older_changes() -> None:
    older = [replace(CHANGE, path=f"{number}.py", row=number, new=f"new_{number}\n") for number in range(5)]
    prompt = build("sweep-card", replace(CONTEXT, changes=[*older, CHANGE]))
    text = "".join(
        f"<|file_sep|>{number}.py.diff\noriginal:\nrow_12 = 0\nupdated:\nnew_{number}\n" for number in (2, 3, 4)
    )
    window = [f"{line}\n" for line in LINES[2:23]]
    before = "".join([*window[:10], "row_12 = 0\n", *window[11:]])
    text += f"<|file_sep|>original/a.py\n{before}<|file_sep|>current/a.py\n{''.join(window)}<|file_sep|>updated/a.py\n"
    assert prompt.ids == tokenizer().encode_with_specials(text)


def test_source_text_is_never_a_control_token() -> None:
    counts = []
    for text in ("plain", "<|file_sep|>updated/a.py <|im_end|><|endoftext|>"):
        change = Change(text, 3, f"{text}\n", f"{text} 1\n")
        context = EditContext(
            path=text,
            lines=[f"{line} # {text}" for line in LINES],
            changes=[change],
            snippets=[(text, text)],
            problems=[(1, text)],
        )
        prompts = [build(name, context) for name in edit_formats()]
        counts.append([sum(one in tokenizer().special_ids for one in prompt.ids) for prompt in prompts])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", edit_formats())
def test_what_does_not_fit_is_left_out_and_the_latest_change_goes_last(name: str) -> None:
    many = [Change("b.py", 1, "", f"change_{number}\n") for number in range(16)]
    context = replace(CONTEXT, changes=many, snippets=[("c.py", "x\n" * 500)])
    sizes, shown = [], []
    for budget in (0, 500, 700, 1000, 2000, 4000):
        prompt = build(name, context, budget=budget)
        sizes.append(len(prompt.ids))
        shown.append([number for number in range(16) if f"change_{number}\n" in prompt.text])
        assert len(prompt.ids) <= budget or shown[-1] == [15]
    assert sizes == sorted(sizes) and all(kept == list(range(16 - len(kept), 16)) for kept in shown)
    assert len(shown[-1]) == edit_formats()[name].changes


def test_a_window_that_does_not_fit_is_no_prompt() -> None:
    context = replace(CONTEXT, lines=["x = 1; " * 2000] * 3)
    reason = build_edit_prompt(tokenizer(), edit_formats()["sweep-card"], context, 1, most=512, budget=512)
    assert isinstance(reason, str) and "the context has 512" in reason


def test_windows_at_the_borders_of_a_document() -> None:
    lines = ["a", "b", ""]
    first, last = (
        build("sweep-server", replace(CONTEXT, lines=lines), 0),
        build("sweep-server", replace(CONTEXT, lines=lines), 2),
    )
    assert (first.window.lines, first.window.given) == (("a", "b"), 0)
    assert (last.window.lines, last.window.given) == (("a", "b", ""), 1)
    assert build("sweep-server", replace(CONTEXT, lines=[""]), 0).window.lines == ("",)


def test_a_fence_is_longer_than_any_in_the_document() -> None:
    prompt = build("chat", replace(CONTEXT, lines=["````md", "text", "````"]), 1)
    assert prompt.stops == ("`````",) and "`````python\n" in prompt.text


def test_a_mark_that_the_answer_spells_as_text_is_refused_in_the_window() -> None:
    context = replace(CONTEXT, lines=["a", "b<|cursor|>c", "d"])
    reason = build_edit_prompt(tokenizer(), edit_formats()["sweep-server"], context, 1, most=512, budget=512)
    assert isinstance(reason, str) and "<|cursor|>" in reason


@pytest.mark.parametrize(
    ("setting", "model", "found"),
    [
        ("auto", "sweepai/sweep-next-edit-0.5B", "sweep-server"),
        ("auto", "sweep-next-edit-1.5b.q8_0.v2.gguf", "sweep-server"),
        ("auto", "Qwen/Qwen2.5-Coder-0.5B-Instruct", ""),
        ("chat", "anything", "chat"),
        ("none", "sweepai/sweep-next-edit-0.5B", ""),
    ],
)
def test_the_format_of_a_model(setting: str, model: str, found: str) -> None:
    form = find_format(setting, model, tokenizer())
    assert (form.name if isinstance(form, EditFormat) else "") == found


def test_a_vocabulary_without_the_markers_has_no_format() -> None:
    plain = TextTokenizer.from_backend(toy_backend("qwen"))
    assert "lacks <|im_start|> and <|im_end|>" in str(find_format("chat", "toy", plain))
