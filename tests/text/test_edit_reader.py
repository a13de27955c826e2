"""Prompts that next-edit clients write: recognized by shape, ids as with the markers parsed, drafts from the old lines.

The prompts are rebuilt here in the clients' layouts from our own scenarios, and from facts of the exchanges that
cursortab recorded (MIT; `server/eval/scenarios` of its repository), in `edit_recordings.json`: which lines of a window
are equal, where the cursor is, how many changes come before it, and which lines the answer has. The lines themselves
are ours. With EDIT_RECORDINGS, that folder, the recordings are read as well, and compared with the facts.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from codespec.text.edit_formats import edit_formats
from codespec.text.edit_hunks import AnswerReader, Window
from codespec.text.edit_prompt import EditPrompt, build_edit_prompt
from codespec.text.edit_reader import predict_region, read_edit_prompt
from codespec.text.tokenizer import TextTokenizer
from tests.text.test_edit_hunks import applied
from tests.text.test_edit_prompt import CONTEXT, tokenizer
from tests.toy_tokenizers import toy_tokenizer

WINDOW = "def area(width, height):\n    return w * height\n"
MARKED = "def area(width, height):\n    return {mark}w * height\n"
HISTORY = "-def area(w, height):\n+def area(width, height):\n"
RECORDINGS = os.environ.get("EDIT_RECORDINGS", "")
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


def exchanges() -> Iterator[tuple[str, str]]:
    """Yield the prompt and the answer of each recorded exchange with a prompt."""
    for file in sorted(Path(RECORDINGS).rglob("*.ndjson")):
        prompts: dict[int, str] = {}
        for line in file.read_text("utf-8").splitlines():
            record: dict[str, Any] = json.loads(line)
            if record["kind"] == "meta":
                continue
            body = base64.b64decode(record.get("body_b64") or "")
            if record["kind"] == "request" and b'"prompt"' in body:
                prompts[record["interaction"]] = json.loads(body)["prompt"]
            elif record["kind"] == "response" and record["interaction"] in prompts:
                yield prompts[record["interaction"]], json.loads(body)["choices"][0]["text"]


def facts_of(prompt: str, answer: str) -> dict[str, Any] | None:
    """Return the facts of an exchange. A line is the number of the first equal one, -1 if blank."""
    found = read_edit_prompt(prompt)
    new = without_marks(answer, found.form.mark).rstrip("\n") if found else ""
    if found is None or not new.strip():
        return None
    old = without_marks(found.prediction).rstrip("\n").split("\n")
    numbers: dict[str, int] = {}
    old_lines, new_lines = (
        [numbers.setdefault(line, len(numbers)) if line.strip() else -1 for line in lines]
        for lines in (old, new.split("\n"))
    )
    marked = [
        line.replace(found.form.mark, "") for line in prompt.split("\n") if found.form.mark and found.form.mark in line
    ]
    row = next((old.index(line) for line in marked if line in old), 0)
    history = len(re.findall(r"^User edited |^--- a/|\.diff$", prompt, re.MULTILINE))
    return {"form": found.form.name, "old": old_lines, "new": new_lines, "row": row, "history": history}


def without_marks(text: str, mark: str = "") -> str:
    """Return a window's text without the marks around it and at the cursor."""
    for part in ("<|editable_region_start|>\n", "\n<|editable_region_end|>", *filter(None, [mark])):
        text = text.replace(part, "")
    return text


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
    assert without_marks(found.prediction).rstrip("\n").split("\n") == "\n".join(old).rstrip("\n").split("\n")
    speller = tokenizer()
    assert found.ids(speller) == speller.encode_with_specials(prompt)
    reader = AnswerReader(Window(tuple(old)))
    hunks = [hunk for piece in "\n".join(new) for hunk in reader.feed(piece)] + reader.finish()
    assert "\n".join(applied(old, hunks)).rstrip() == "\n".join(new).rstrip()
    assert bool(hunks) == (old != new)


@pytest.mark.skipif(not RECORDINGS, reason="EDIT_RECORDINGS is not set")
def test_recorded_exchanges() -> None:
    counts: Counter[str] = Counter()
    speller: TextTokenizer = tokenizer()
    facts = [facts_of(prompt, answer) for prompt, answer in exchanges()]
    assert [each for number, each in enumerate(facts) if each and each not in facts[:number]] == json.loads(
        FACTS.read_text()
    )
    for prompt, answer in exchanges():
        found = read_edit_prompt(prompt)
        if found is None:
            assert "<|fim_prefix|>" in prompt
            continue
        assert found.ids(speller) == speller.encode_with_specials(prompt)
        assert found.prediction or "current/" not in prompt
        old = found.prediction.replace("<|editable_region_start|>\n", "").replace("\n<|editable_region_end|>", "")
        new = answer.removeprefix("<|editable_region_start|>\n").replace(found.form.mark, "").rstrip("\n")
        lines = old.rstrip("\n").split("\n")
        reader = AnswerReader(Window(tuple(lines)))
        hunks = [hunk for piece in new for hunk in reader.feed(piece)] + reader.finish()
        if new.strip():
            assert "\n".join(applied(lines, hunks)).rstrip() == new.rstrip()
        counts[found.form.name] += 1
        counts["changed"] += bool(hunks)
    print(dict(counts))
    assert counts["sweep-server"] and counts["zeta-1"] and counts["zeta-2"]
