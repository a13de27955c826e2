"""Prompts that next-edit clients write: recognized by shape, ids as with the markers parsed, drafts from the old lines.

The prompts are rebuilt here in the clients' layouts from our own scenarios, and from facts of the exchanges that
cursortab recorded (MIT; `server/eval/scenarios` of its repository), in `edit_recordings.json`: which lines of a window
are equal, where the cursor is, how many changes come before it, and which lines the answer has. The lines themselves
are ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from codespec.text.edit_formats import AnswerReader, Window, edit_formats, predict_region, read_edit_prompt
from codespec.text.edit_prompt import EditPrompt, build_edit_prompt
from tests.text.test_edit_hunks import applied
from tests.text.test_edit_prompt import CONTEXT, tokenizer
from tests.toy_tokenizers import toy_tokenizer

WINDOW = "def area(width, height):\n    return w * height\n"
MARKED = "def area(width, height):\n    return {mark}w * height\n"
HISTORY = "-def area(w, height):\n+def area(width, height):\n"
FACTS = Path(__file__).with_name("edit_recordings.json")
NAMES = ("width", "height", "rate", "count", "path", "size", "order")


def sweep(given: str = "", rows: str = ":1:2") -> str:
    """Return a prompt as Sweep's server and cursortab lay it out."""
    marked = MARKED.format(mark="<|cursor|>")
    return (
        f"<|file_sep|>a.py\n{WINDOW}<|file_sep|>a.py.diff\noriginal:\nx\nupdated:\ny\n<|file_sep|>original/a.py{rows}\n"
        f"{WINDOW}<|file_sep|>current/a.py{rows}\n{marked}<|file_sep|>updated/a.py{rows}\n{given}"
    )


def zeta_1() -> str:
    region = MARKED.format(mark="<|user_cursor_is_here|>")
    return (
        f'### Instruction:\nRewrite.\n\n### User Edits:\n\nUser edited "a.py":\n```diff\n{HISTORY}```\n\n'
        f"### User Excerpt:\n\n```a.py\n<|start_of_file|>\n<|editable_region_start|>\n{region}<|editable_region_end|>\n"
        "```\n\n### Response:\n"
    )


def zeta_2() -> str:
    region = MARKED.format(mark="<|user_cursor|>")
    return (
        f"<[fim-suffix]>\nprint(1)\n<[fim-prefix]><filename>edit_history\n--- a/a.py\n+++ b/a.py\n{HISTORY}\n"
        f"<filename>a.py\nimport os\n<<<<<<< CURRENT\n{region}=======\n<[fim-middle]>"
    )


def zeta_21() -> str:
    first, second = MARKED.format(mark="<|user_cursor|>").splitlines(keepends=True)
    return (
        "<[fim-suffix]>\n<[fim-prefix]><filename>a.py\nimport os\n"
        f"<|marker_1|>{first}<|marker_2|>{second}<|marker_3|>\n<[fim-middle]>"
    )


SHAPES = [
    (sweep(), "sweep-server", WINDOW, ()),
    (sweep(rows=""), "sweep-server", WINDOW, ()),
    (sweep(WINDOW.splitlines(keepends=True)[0]), "sweep-server", "    return w * height\n", ()),
    (
        zeta_1(),
        "zeta-1",
        f"<|editable_region_start|>\n{WINDOW}<|editable_region_end|>",
        ("\n<|editable_region_end|>", "<|editable_region_end|>"),
    ),
    (zeta_2(), "zeta-2", WINDOW, (">>>>>>> UPDATED",)),
    (
        zeta_21(),
        "zeta-2.1",
        "<|marker_1|>def area(width, height):\n<|marker_2|>    return w * height\n<|marker_3|>",
        (),
    ),
]


@pytest.mark.parametrize(("prompt", "form", "prediction", "stops"), SHAPES)
@pytest.mark.parametrize("kind", ["qwen", "gpt2", "llama2"])
def test_prompts_of_clients(kind: str, prompt: str, form: str, prediction: str, stops: tuple[str, ...]) -> None:
    found = read_edit_prompt(prompt)
    assert found is not None
    assert (found.form.name, found.prediction, found.stops) == (form, prediction, stops)
    speller = tokenizer(kind)
    assert found.ids(speller) == [*speller.bos_ids, *speller.encode_with_specials(prompt)]


@pytest.mark.parametrize("name", [name for name, form in edit_formats().items() if form.reads])
def test_our_own_prompts_are_read_back(name: str) -> None:
    form = edit_formats()[name]
    prompt = build_edit_prompt(tokenizer(), form, CONTEXT, 12, most=4096, budget=4096)
    assert isinstance(prompt, EditPrompt)
    spelled = {number: marker for marker, number in tokenizer().vocab.items() if number in tokenizer().special_ids}
    text = "".join(spelled.get(one) or tokenizer().decode_bytes([one]).decode() for one in prompt.ids)
    found = read_edit_prompt(text.removesuffix("<|marker_1|>").removesuffix("\n<|editable_region_start|>\n"))
    assert found is not None and prompt.prediction in found.prediction


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "def f():\n    pass\n",
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|file_sep|>updated/a.py\nx",
        "<|file_sep|>current/a.py\nx",
        "<|file_sep|>updated/a.py\nx<|file_sep|>current/a.py\ny",
        "<[fim-suffix]>b<[fim-prefix]>a<[fim-middle]>",
        zeta_2() + "more",
        "x" + zeta_2(),
        zeta_1().removesuffix("### Response:\n"),
        'MARK = "<|editable_region_start|>\\n"  # and <|editable_region_end|>',
    ],
)
def test_other_prompts_are_none(prompt: str) -> None:
    assert read_edit_prompt(prompt) is None


def test_a_vocabulary_without_the_markers_reads_no_such_prompt() -> None:
    for prompt in (zeta_2(), zeta_21()):
        found = read_edit_prompt(prompt)
        assert found is not None and found.ids(toy_tokenizer("qwen")) is None
    qwen = read_edit_prompt(sweep())
    assert qwen is not None and qwen.ids(toy_tokenizer("qwen")) is not None


def test_only_the_format_s_own_tokens_are_parsed() -> None:
    found = read_edit_prompt(sweep().replace("print", "<|im_end|><|endoftext|>").replace("height", "<|fim_prefix|>"))
    assert found is not None
    speller = tokenizer()
    ids = found.ids(speller) or []
    controls = Counter(one for one in ids if one in speller.special_ids)
    assert controls == {speller.vocab["<|file_sep|>"]: 5}


def test_given_text_that_differs_from_the_old_lines_predicts_nothing() -> None:
    found = read_edit_prompt(sweep("something else\n"))
    assert found is not None and found.prediction == ""


def test_the_region_of_a_chat_message() -> None:
    assert predict_region(zeta_1()) == WINDOW.removesuffix("\n")
    assert predict_region("a<|editable_region_end|>b<|editable_region_start|>") == predict_region("hello") == ""


def rebuilt(facts: Mapping[str, Any]) -> tuple[str, list[str], list[str]]:
    """Return a prompt with these facts, its window's lines, and those of the answer."""
    old, new = ([line_of(number) for number in facts[side]] for side in ("old", "new"))
    layouts = {
        "sweep-server": (sweep(rows=f":1:{len(old)}"), "<|cursor|>"),
        "zeta-1": (zeta_1(), "<|user_cursor_is_here|>"),
        "zeta-2": (zeta_2(), "<|user_cursor|>"),
    }
    prompt, mark = layouts[facts["form"]]
    marked = [mark + line if row == facts["row"] else line for row, line in enumerate(old)]
    prompt = prompt.replace(HISTORY, HISTORY * facts["history"])
    for before, lines in ((MARKED.format(mark=mark), marked), (WINDOW, old)):
        prompt = prompt.replace(before, "".join(f"{line}\n" for line in lines))
    return prompt, old, new


def line_of(number: int) -> str:
    return "" if number < 0 else f"{'    ' * (number % 4)}{NAMES[number % len(NAMES)]}_{number} = total({number}, rate)"


@pytest.mark.parametrize("facts", json.loads(FACTS.read_text()), ids=lambda facts: facts["form"])
def test_exchanges_rebuilt_from_facts(facts: Mapping[str, Any]) -> None:
    prompt, old, new = rebuilt(facts)
    found = read_edit_prompt(prompt)
    assert found is not None and found.form.name == facts["form"]
    same = found.prediction.replace("<|editable_region_start|>\n", "").replace("\n<|editable_region_end|>", "")
    assert same.rstrip("\n").split("\n") == "\n".join(old).rstrip("\n").split("\n")
    speller = tokenizer()
    assert found.ids(speller) == speller.encode_with_specials(prompt)
    reader = AnswerReader(Window(tuple(old)))
    hunks = [hunk for piece in "\n".join(new) for hunk in reader.feed(piece)] + reader.finish()
    assert "\n".join(applied(old, hunks)).rstrip() == "\n".join(new).rstrip()
    assert bool(hunks) == (old != new)
