"""Fill-in-the-middle: templates from vocabularies, prompts within budgets, markers in source text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from codespec.errors import RequestError
from codespec.text.fim import Layout, TokenPrompt, build_prompt
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer
from tests.toy_tokenizers import KINDS, held_out_texts, toy_backend, toy_tokenizer

PIPED = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
PLAIN = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
DEEPSEEK = ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>")
GLM = ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")
SEED = ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
FAMILIES = {
    "qwen": ((*PIPED, "<|file_sep|>", "<|repo_name|>"), "{P}p{S}s{M}"),
    "codegemma": ((*PIPED, "<|file_separator|>"), "{P}p{S}s{M}"),
    "granite4": ((*PIPED, "<|end_of_text|>"), "{P}p{S}s{M}"),
    "codespec": ((*PIPED, "<|file_sep|>", "<|endoftext|>"), "{P}p{S}s{M}"),
    "piped": (PIPED, "{P}p{S}s{M}"),
    "codeqwen": ((*PLAIN, "<file_sep>", "<reponame>"), "{P}p{S}s{M}"),
    "starcoder2": ((*PLAIN, "<file_sep>", "<repo_name>"), "{P}p{S}s{M}"),
    "granite": ((*PLAIN, "<reponame>"), "{P}p{S}s{M}"),
    "starcoder": (PLAIN, "{P}p{S}s{M}"),
    "santacoder": (("<fim-prefix>", "<fim-suffix>", "<fim-middle>"), "{P}p{S}s{M}"),
    "deepseek": (DEEPSEEK, "{P}p{S}s{M}"),
    "codellama": (("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"), "{P}p{S}s{M}"),
    "codestral": (("[PREFIX]", "[SUFFIX]", "[MIDDLE]"), "{S}s{P}p"),
    "glm": (GLM, "{P}p{S}s{M}"),
    "seed-coder": (SEED, "{S}s{P}p{M}"),
    "falcon-h1": (("<|prefix|>", "<|suffix|>", "<|middle|>"), "{P}p{S}s{M}"),
}


def with_tokens(tokens: Sequence[str], *, special: bool = True, **config: Any) -> TextTokenizer:
    """Return a byte tokenizer with exactly these control tokens."""
    document = json.loads(toy_backend("bytes").to_str())
    names = document["model"]["vocab"].keys() - {entry["content"] for entry in document["added_tokens"]}
    document["model"]["vocab"] = {name: place for place, name in enumerate(sorted(names))}
    document["added_tokens"] = []
    backend = Tokenizer.from_str(json.dumps(document))
    backend.add_tokens([AddedToken(token, special=special, normalized=False) for token in tokens])
    return TextTokenizer.from_backend(backend, config=config)


def template_of(tokenizer: TextTokenizer) -> FimTemplate:
    """Return the template, which must exist."""
    template = find_template(tokenizer)
    assert isinstance(template, FimTemplate)
    return template


def spelled(tokenizer: TextTokenizer, prompt: TokenPrompt) -> str:
    """Return the prompt with control tokens by name."""
    names = {number: name for name, number in tokenizer.vocab.items()}
    return "".join(
        names[number] if number in tokenizer.special_ids else tokenizer.token_bytes[number].decode()
        for number in prompt.ids
    )


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_found_and_laid_out(family: str, special: bool) -> None:
    tokens, layout = FAMILIES[family]
    tokenizer = with_tokens(tokens, special=special)
    template = template_of(tokenizer)
    assert template.family == family
    prompt = build_prompt(tokenizer, template, prefix="p", suffix="s", budget=100)
    names = {"P": tokens[0], "S": tokens[1], "M": tokens[2]}
    assert spelled(tokenizer, prompt) == layout.format(**names)
    assert template.end_ids <= tokenizer.eos_ids
    assert prompt.continues == (family == "codestral")


def test_suffix_prefix_middle_order_only_where_declared() -> None:
    tokens = (*PIPED, "<|file_sep|>")
    ours = with_tokens(tokens, codespec_fim_orders=["psm", "spm"])
    prompt = build_prompt(ours, template_of(ours), prefix="p", suffix="s", budget=100)
    assert spelled(ours, prompt) == "<|fim_prefix|><|fim_suffix|>s<|fim_middle|>p"
    assert prompt.continues
    starcoder = with_tokens((*PLAIN, "<file_sep>"), codespec_fim_order="spm")
    assert template_of(starcoder).order == "spm"
    assert template_of(with_tokens((*PLAIN, "<file_sep>"))).order == "psm"
    assert template_of(with_tokens(FAMILIES["codestral"][0], codespec_fim_order="spm")).order == "suffix_first"


def test_a_dummy_prefix_stands_before_the_prefix_and_before_our_own_suffix_only() -> None:
    backend = Tokenizer.from_str(toy_backend("llama2").to_str())
    backend.add_special_tokens(["\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"])
    markers = {"fim_prefix": "\u2581<PRE>", "fim_suffix": "\u2581<SUF>", "fim_middle": "\u2581<MID>"}
    theirs = TextTokenizer.from_backend(backend, config=markers)
    prompt = build_prompt(theirs, template_of(theirs), prefix="p", suffix="s", budget=100)
    assert spelled(theirs, prompt) == "<s>\u2581<PRE> p\u2581<SUF>s\u2581<MID>"
    ours = toy_tokenizer("llama2")
    prompt = build_prompt(ours, template_of(ours), prefix="p", suffix="s", budget=100)
    assert spelled(ours, prompt) == "<s><|fim_prefix|> p<|fim_suffix|> s<|fim_middle|>"


def test_the_config_overrides_the_search() -> None:
    tokens = (*PIPED, "<PRE>", "<SUF>", "<MID>")
    tokenizer = with_tokens(tokens, fim_prefix="<PRE>", fim_suffix={"content": "<SUF>"}, fim_middle="<MID>")
    assert template_of(tokenizer).family == "declared"
    prompt = build_prompt(tokenizer, template_of(tokenizer), prefix="p", suffix="s", budget=100)
    assert spelled(tokenizer, prompt) == "<PRE>p<SUF>s<MID>"
    missing = find_template(with_tokens(PIPED, fim_prefix="<X>", fim_suffix="<SUF>", fim_middle="<MID>"))
    assert isinstance(missing, FimMissing)


def test_a_missing_piece_is_named() -> None:
    partly = find_template(with_tokens(PIPED[:2]))
    assert isinstance(partly, FimMissing) and "lacks <|fim_middle|>" in partly.reason
    nothing = find_template(with_tokens(("<|endoftext|>",)))
    assert isinstance(nothing, FimMissing) and "no fill-in-the-middle tokens" in nothing.reason


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_markers_in_source_text_stay_text(kind: str) -> None:
    tokenizer = toy_tokenizer(kind)
    source = "x = '<|fim_suffix|>' + '<|endoftext|>'\r\n\t"
    prompt = build_prompt(tokenizer, template_of(tokenizer), prefix=source, suffix=source, budget=400)
    assert sum(number in tokenizer.special_ids for number in prompt.ids) == 3 + len(tokenizer.bos_ids)
    assert tokenizer.decode_bytes(prompt.ids).count(source.encode()) == 2


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_plain_prompt_is_the_models_own_encoding(kind: str) -> None:
    tokenizer = toy_tokenizer(kind)
    text = held_out_texts()[0][:2000]
    prompt = build_prompt(tokenizer, None, prefix=text, suffix="ignored", budget=4000)
    assert prompt.ids == toy_backend(kind).encode(text).ids
    assert (prompt.context, prompt.held, prompt.continues, prompt.trimmed) == (text.encode(), b"", True, False)


def test_nothing_after_the_cursor_is_a_suffix_too() -> None:
    """The end of a file and a notebook's cell keep the markers and the other files."""
    tokenizer = with_tokens((*PIPED, "<|repo_name|>", "<|file_sep|>"))
    other = [("b.py", "class Crate: ...")]
    prompt = build_prompt(
        tokenizer, template_of(tokenizer), prefix="Crate(", path="a.py", snippets=other, budget=200, heal=True
    )
    text = spelled(tokenizer, prompt)
    assert "class Crate: ..." in text
    assert text.endswith("<|fim_prefix|>Crate(<|fim_suffix|><|fim_middle|>")


class TestHealing:
    @pytest.mark.parametrize("kind", sorted(KINDS))
    @pytest.mark.parametrize("suffix", ["", "\n    pass\n"])
    def test_held_bytes_leave_the_prefix_and_nothing_else(self, kind: str, suffix: str) -> None:
        tokenizer = toy_tokenizer(kind)
        prefix = "def f(self):\n    retu"
        template = template_of(tokenizer)
        plain = build_prompt(tokenizer, template, prefix=prefix, suffix=suffix, budget=200)
        healed = build_prompt(tokenizer, template, prefix=prefix, suffix=suffix, budget=200, heal=True)
        assert healed.context + healed.held == prefix.encode() == plain.context
        assert (plain.held, healed.prefix_start) == (b"", 0)
        if kind not in ("bytes", "neox"):  # these lack a token that begins with "retu"
            assert healed.held.endswith(b"retu")
        missing = tokenizer.spell([healed.held])[0]
        assert len(healed.ids) <= len(plain.ids) <= len(healed.ids) + len(missing) + 1

    def test_one_id_stays_where_there_is_no_bos(self) -> None:
        tokenizer = toy_tokenizer("gpt2")
        assert len(build_prompt(tokenizer, None, prefix="re", budget=50, heal=True).ids) == 1

    def test_the_cursor_behind_an_opener_may_take_a_longer_token(self) -> None:
        tokenizer = toy_tokenizer("gpt2")
        healed = build_prompt(tokenizer, None, prefix="x = f(", budget=50, heal=True)
        assert healed.held.endswith(b"(")


class TestBudgets:
    """Long documents: which part is kept, and that it is stable while typing."""

    text = held_out_texts()[0] + held_out_texts()[1] + held_out_texts()[2]

    @pytest.mark.parametrize("kind", sorted(KINDS))
    @pytest.mark.parametrize("budget", [16, 64, 600])
    def test_the_budget_holds_and_windows_meet_the_cursor(self, kind: str, budget: int) -> None:
        tokenizer = toy_tokenizer(kind)
        prefix, suffix = self.text[:30_000], self.text[30_000:]
        prompt = build_prompt(tokenizer, template_of(tokenizer), prefix=prefix, suffix=suffix, budget=budget)
        assert len(prompt.ids) <= budget and prompt.trimmed
        assert len(prompt.ids) > budget // 3
        assert prompt.context == prefix[prompt.prefix_start :].encode()
        data = tokenizer.decode_bytes(prompt.ids)
        behind = data.replace(prompt.context, b"", 1).strip(b" ")
        assert suffix.encode().strip(b" ").startswith(behind)

    def test_windows_begin_and_end_at_lines(self) -> None:
        tokenizer = toy_tokenizer("llama3")
        prefix, suffix = self.text[:30_000], self.text[30_000:]
        prompt = build_prompt(tokenizer, template_of(tokenizer), prefix=prefix, suffix=suffix, budget=600)
        assert prefix[prompt.prefix_start - 1] == "\n"
        assert tokenizer.decode_bytes(prompt.ids).endswith(b"\n")
        suffix_ids = prompt.ids[prompt.ids.index(tokenizer.vocab["<|fim_suffix|>"]) + 1 : -1]
        assert 40 < len(suffix_ids) <= 75

    def test_nothing_is_cut_that_fits(self) -> None:
        tokenizer = toy_tokenizer("llama3")
        prefix, suffix = self.text[:300], self.text[300:3000]  # a suffix much longer than its share
        size = len(tokenizer.encode(prefix)) + len(tokenizer.encode(suffix)) + 4
        whole = build_prompt(tokenizer, template_of(tokenizer), prefix=prefix, suffix=suffix, budget=size)
        assert not whole.trimmed and len(whole.ids) == size
        assert build_prompt(tokenizer, template_of(tokenizer), prefix=prefix, suffix=suffix, budget=size - 1).trimmed

    @pytest.mark.parametrize("with_layout", [False, True])
    def test_typing_moves_the_window_only_now_and_then(self, with_layout: bool) -> None:
        tokenizer = toy_tokenizer("llama3")
        starts: list[int] = []
        layout = Layout() if with_layout else None
        for end in range(20_000, 26_000, 50):
            prompt = build_prompt(tokenizer, None, prefix=self.text[:end], budget=800, layout=layout)
            starts.append(prompt.prefix_start)
            assert len(prompt.ids) > 400
        assert starts == sorted(starts)
        moves = [b - a for a, b in pairwise(starts) if b != a]
        assert 3 <= len(moves) <= 16 and min(moves) > 200

    def test_an_anchor_is_kept_when_the_text_before_it_moves(self) -> None:
        tokenizer = toy_tokenizer("llama3")
        start = self.text.index("\n", 19_000) + 1
        layout = Layout()
        layout.keep_start(start, self.text, 0)
        prompt = build_prompt(tokenizer, None, prefix=self.text[:20_500], budget=800, layout=layout)
        assert prompt.prefix_start == start
        layout.starts = [(20_300, self.text[20_300:20_428])]
        far = build_prompt(tokenizer, None, prefix=self.text[:20_500], budget=800, layout=layout)
        assert far.prefix_start < 19_500  # a window of a few tokens is not kept

    def test_one_endless_line_is_cut_between_characters(self) -> None:
        for kind in sorted(KINDS):
            prompt = build_prompt(toy_tokenizer(kind), None, prefix="\u65e5\U0001f600" * 500, budget=40)
            assert 0 < len(prompt.ids) <= 40 and "\ufffd" not in prompt.context.decode()

    def test_a_huge_document_costs_no_more_than_a_long_one(self) -> None:
        tokenizer = toy_tokenizer("llama3")
        seen: list[int] = []
        spell = tokenizer.spell

        def counting(pieces: Sequence[bytes]) -> list[list[int]]:
            seen.append(sum(map(len, pieces)))
            return spell(pieces)

        huge = self.text * 20
        tokenizer.spell = counting  # type: ignore[method-assign]
        try:
            build_prompt(tokenizer, template_of(tokenizer), prefix=huge, suffix=huge, budget=400)
        finally:
            del tokenizer.spell
        assert 0 < sum(seen) < 400 * 8 * 4

    def test_no_room_is_one_sentence(self) -> None:
        with pytest.raises(RequestError, match="max_tokens leaves room for 2 prompt tokens"):
            build_prompt(toy_tokenizer("gpt2"), None, prefix="x", budget=2)


class TestSnippets:
    def test_snippets_stand_before_with_their_paths(self) -> None:
        tokenizer = with_tokens((*PIPED, "<|file_sep|>"))
        prompt = build_prompt(
            tokenizer,
            template_of(tokenizer),
            prefix="p",
            suffix="s",
            path="a.py",
            snippets=[("b.py", "x = 1\n"), ("c.py", "<|fim_prefix|>\n")],
            budget=400,
        )
        head = "<|file_sep|>b.py\nx = 1\n<|file_sep|>c.py\n<|fim_prefix|>\n<|file_sep|>a.py\n"
        assert spelled(tokenizer, prompt) == head + "<|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>"
        assert prompt.ids.count(tokenizer.vocab["<|fim_prefix|>"]) == 1

    def test_they_take_a_quarter_and_the_rest_is_told(self) -> None:
        tokenizer = with_tokens((*PIPED, "<|file_sep|>"))
        snippets = [("b.py", "x = 1\n" * 40), ("c.py", "y = 2\n" * 40)]
        prompt = build_prompt(
            tokenizer, template_of(tokenizer), prefix="p" * 999, suffix="s", path="a.py", snippets=snippets, budget=400
        )
        assert prompt.ids.index(tokenizer.vocab["<|fim_prefix|>"]) <= 100
        assert len(prompt.ids) <= 400
        assert "1 of 2 snippets" in prompt.notes[0]

    def test_they_are_left_out_with_a_note_where_the_model_has_no_place_for_them(self) -> None:
        tokenizer = with_tokens(DEEPSEEK)
        snippets = [("b.py", "x = 1\n")]
        prompt = build_prompt(tokenizer, template_of(tokenizer), prefix="p", suffix="s", snippets=snippets, budget=400)
        assert "no known file separator" in prompt.notes[0] and b"x = 1" not in tokenizer.decode_bytes(prompt.ids)
        plain = build_prompt(tokenizer, None, prefix="p", snippets=snippets, budget=400)
        assert "snippets are left out" in plain.notes[0]
