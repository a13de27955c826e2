"""Ready-made prompts as files, chat templates and a second client put them: around the markers, and twice."""

from __future__ import annotations

import pytest

from codespec.text.fim_templates import _SPELLINGS, ReadyMade, _Spelling, split_ready_made

CHAT = "<|im_start|>system\nYou complete code.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
GEMMA = "<bos><start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
AROUND = ["{}\n", "{}\r\n", "{} ", "<s>{}", CHAT, GEMMA, CHAT.replace("{}", "\n{}\n")]
CLOSED = [each for each in _SPELLINGS if each.middle and not each.prefix_last]


def spell(spelling: _Spelling, prefix: str, suffix: str) -> str:
    if spelling.prefix_last:
        return f"{spelling.prefix}{spelling.suffix}{suffix}{spelling.middle}{prefix}"
    one, other = f"{spelling.prefix}{prefix}", f"{spelling.suffix}{suffix}"
    return f"{other}{one}{spelling.middle}" if spelling.suffix_first else f"{one}{other}{spelling.middle}"


def name(spelling: _Spelling) -> str:
    return f"{spelling.prefix}{spelling.separator}{'-first' * spelling.suffix_first}{'-last' * spelling.prefix_last}"


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("spelling", CLOSED, ids=name)
def test_what_follows_the_last_marker_does_not_count(spelling: _Spelling, around: str) -> None:
    assert split_ready_made(around.format(spell(spelling, "x = ", "\n\ny"))) == ReadyMade("x = ", "\n\ny")


@pytest.mark.parametrize("spelling", CLOSED, ids=name)
def test_source_text_may_hold_the_same_markers(spelling: _Spelling) -> None:
    """As in a file about these very prompts."""
    code = f'PROMPT = "{spell(spelling, "{p}", "{s}")}".format\n'
    for prefix, suffix in ((code, "\n"), ("x = ", code), (code * 3, code * 2)):
        assert split_ready_made(spell(spelling, prefix, suffix)) == ReadyMade(prefix, suffix)
        assert split_ready_made(prefix) is None


@pytest.mark.parametrize("spelling", _SPELLINGS, ids=name)
def test_a_prompt_that_was_wrapped_twice(spelling: _Spelling) -> None:
    if spelling in CLOSED:
        twice = spell(spelling, spell(spelling, "x = ", "\n\ny"), "")
        assert split_ready_made(twice) == ReadyMade("x = ", "\n\ny")
    assert split_ready_made(spell(spelling, "x = ", "\n\ny")) == ReadyMade("x = ", "\n\ny")


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
