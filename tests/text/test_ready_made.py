"""Prompts that clients build with markers themselves: parsed exactly, with source text left whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.text.fim_templates import _SPELLINGS, ReadyMade, _Spelling, split_ready_made
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
def test_every_family_comes_apart(family: str, prefix: str, suffix: str) -> None:
    assert split_ready_made(spell(family, prefix, suffix)) == ReadyMade(prefix, suffix)


def test_other_files_come_along() -> None:
    before = "<|repo_name|>demo\n<|file_sep|>a.py\nx = 1\n<|file_sep|>src/b.py\n"
    found = split_ready_made(before + spell("qwen", "p", "s"))
    assert found == ReadyMade("p", "s", (("a.py", "x = 1\n"),))


CLIENTS = {
    "code llama, Continue and Zed": "<PRE> {p} <SUF>{s} <MID>",
    "codegeex, Continue": (
        "###PATH:a.py\n###LANGUAGE:python\n###MODE:BLOCK\n"
        "<|code_suffix|>{s}<|code_prefix|>{p}<|code_middle|><|assistant|>\n"
    ),
    "glm, Zed": "<|code_prefix|>{p}<|code_suffix|>{s}<|code_middle|>",
    "santacoder": "<fim-prefix>{p}<fim-suffix>{s}<fim-middle>",
    "seed-coder, Continue": "<[fim-prefix]>{p}<[fim-suffix]>{s}<[fim-middle]>",
    "mellum": "<filename>a.py\n<fim_suffix>{s}<fim_prefix>{p}<fim_middle>",
    "codestral": "[SUFFIX]{s}[PREFIX]{p}",
    "deepseek": "<\uff5cfim\u2581begin\uff5c>{p}<\uff5cfim\u2581hole\uff5c>{s}<\uff5cfim\u2581end\uff5c>",
    "qwen": "<|fim_prefix|>{p}<|fim_suffix|>{s}<|fim_middle|>",
    "starcoder": "<fim_prefix>{p}<fim_suffix>{s}<fim_middle>",
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [("def f(x):\n    return ", "\n\ny = 1\n"), (" x ", " y "), ("", "\n"), ("x", "")],
)
def test_what_clients_put_together(client: str, prefix: str, suffix: str) -> None:
    """Exactly the parts they would send separately, spaces included."""
    assert split_ready_made(CLIENTS[client].format(p=prefix, s=suffix)) == ReadyMade(prefix, suffix)


def test_code_llama_without_its_spaces() -> None:
    assert split_ready_made("<PRE>x = <SUF>\n<MID>") == ReadyMade("x = ", "\n")


@pytest.mark.parametrize(
    ("before", "client", "files"),
    [
        ("###REFERENCE:\n###PATH:b.py\nb = 1\n", "codegeex, Continue", (("b.py", "b = 1\n"),)),
        ("<file_sep>x = 1\n<file_sep>y = f(2)\n<file_sep>", "starcoder", (("", "x = 1\n"), ("", "y = f(2)\n"))),
        ("<|file_separator|>a.py\nx = 1\n<|file_separator|>", "qwen", (("a.py", "x = 1\n"),)),
        ("+++++ a.py\nx = 1\n\n+++++ b.py\n", "codestral", (("a.py", "x = 1\n\n"),)),
    ],
)
def test_the_files_that_clients_put_before(before: str, client: str, files: tuple[tuple[str, str], ...]) -> None:
    assert split_ready_made("<|user|>\n" + before + CLIENTS[client].format(p="p", s="s")) == ReadyMade("p", "s", files)


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


CHAT = "<|im_start|>system\nYou complete code.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
GEMMA = "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
AROUND = ["{}\n", "{}\r\n", "{} ", "<s>{}", CHAT, GEMMA, CHAT.replace("{}", "\n{}\n")]
CLOSED = [each for each in _SPELLINGS if each.middle and not each.prefix_last]


def put(spelling: _Spelling, prefix: str, suffix: str) -> str:
    if spelling.prefix_last:
        return f"{spelling.prefix}{spelling.suffix}{suffix}{spelling.middle}{prefix}"
    one, other = f"{spelling.prefix}{prefix}", f"{spelling.suffix}{suffix}"
    return f"{other}{one}{spelling.middle}" if spelling.suffix_first else f"{one}{other}{spelling.middle}"


def name(spelling: _Spelling) -> str:
    return f"{spelling.prefix}{spelling.separator}{'-first' * spelling.suffix_first}{'-last' * spelling.prefix_last}"


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("spelling", CLOSED, ids=name)
def test_what_follows_the_last_marker_does_not_count(spelling: _Spelling, around: str) -> None:
    assert split_ready_made(around.format(put(spelling, "x = ", "\n\ny"))) == ReadyMade("x = ", "\n\ny")


@pytest.mark.parametrize("spelling", CLOSED, ids=name)
def test_source_text_may_hold_the_same_markers(spelling: _Spelling) -> None:
    """As in a file about these very prompts."""
    code = f'PROMPT = "{put(spelling, "{p}", "{s}")}".format\n'
    for prefix, suffix in ((code, "\n"), ("x = ", code), (code * 3, code * 2)):
        assert split_ready_made(put(spelling, prefix, suffix)) == ReadyMade(prefix, suffix)
        assert split_ready_made(prefix) is None


@pytest.mark.parametrize("spelling", _SPELLINGS, ids=name)
def test_a_prompt_that_was_wrapped_twice(spelling: _Spelling) -> None:
    if spelling in CLOSED:
        twice = put(spelling, put(spelling, "x = ", "\n\ny"), "")
        assert split_ready_made(twice) == ReadyMade("x = ", "\n\ny")
    assert split_ready_made(put(spelling, "x = ", "\n\ny")) == ReadyMade("x = ", "\n\ny")


def test_an_unused_marker_of_codestral_is_no_source_text() -> None:
    assert split_ready_made("<s>[SUFFIX]\n\ny[PREFIX]x = [MIDDLE]") == ReadyMade("x = ", "\n\ny")


@pytest.mark.parametrize(
    "text", ["{P}a{P}b{S}c{M}", "{P}a{S}b{S}c{M}", "{P}a{S}b{M}c{M}", "{S}{P}a{S}b{M}", "{P}a{M}{S}b{M}", "{P}a{M}"]
)
@pytest.mark.parametrize("spelling", CLOSED, ids=name)
def test_markers_that_are_not_balanced_are_text(spelling: _Spelling, text: str) -> None:
    one, other = (spelling.suffix, spelling.prefix) if spelling.suffix_first else (spelling.prefix, spelling.suffix)
    given = text.replace("{P}", one).replace("{S}", other).replace("{M}", spelling.middle)
    assert split_ready_made(given) is None
