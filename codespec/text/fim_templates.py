"""The fill-in-the-middle markers of model families: find a model's template, and parse ready-made prompts.

`find_template` reads the vocabulary; `family_named` uses the model's name, for servers whose vocabulary is unknown.
`split_ready_made` recognizes the prompts that Continue, Zed, Tabby, twinny, minuet and llm-ls build, for any model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from codespec.api.limits import MAX_PATH, MAX_SNIPPETS
from codespec.text.tokenizer import TextTokenizer
from codespec.text.tokenizer_json import token_content

Order = Literal["psm", "spm", "suffix_first"]
MAX_FILES = MAX_SNIPPETS  # files of a ready-made prompt
_BAR = "\uff5c"  # DeepSeek's wide bar
_GAP = "\u2581"  # DeepSeek's wide underscore, which is also SentencePiece's space
_PATH = re.compile(r"[^\s()=;]*[./\\][^\s()=;]*")


@dataclass(frozen=True, slots=True)
class FimTemplate:
    """The order and the marker ids (P, S and M) of a model's fill-in-the-middle prompts for a prefix p and a suffix s.

    The order `psm` is P p S s M, `spm` is P S s M p, and `suffix_first` is S s P p M, where M may be missing.
    """

    family: str
    order: Order
    prefix_id: int
    suffix_id: int
    middle_id: int | None
    separator_id: int | None = None  # of the token before each file
    suffix_begins: bool = False  # whether a dummy prefix is added to the suffix, as in the model's training

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the template's markers, each of which ends a completion."""
        ids = (self.prefix_id, self.suffix_id, self.middle_id, self.separator_id)
        return frozenset(number for number in ids if number is not None)


@dataclass(frozen=True, slots=True)
class FimMissing:
    """A clause for the user that says why a model does not support fill-in-the-middle prompts."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    prefix: str
    suffix: str
    middle: str
    separator: str = ""
    mark: str = ""  # another token that the vocabulary must contain
    order: Order = "psm"
    suffix_begins: bool = False

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))

    @property
    def tokens(self) -> tuple[str, ...]:
        return (*self.needed, *filter(None, (self.separator, self.mark)))


_PIPED = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_PLAIN = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_SANTACODER = ("<fim-prefix>", "<fim-suffix>", "<fim-middle>")
_GLM = ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")
_SEED = ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
_FALCON = ("<|prefix|>", "<|suffix|>", "<|middle|>")
_DEEPSEEK = (f"<{_BAR}fim{_GAP}begin{_BAR}>", f"<{_BAR}fim{_GAP}hole{_BAR}>", f"<{_BAR}fim{_GAP}end{_BAR}>")
# A model has the first family whose tokens are all in its vocabulary.
_FAMILIES = (
    _Family("qwen", *_PIPED, separator="<|file_sep|>", mark="<|repo_name|>"),
    _Family("codegemma", *_PIPED, separator="<|file_separator|>"),
    _Family("granite4", *_PIPED, mark="<|end_of_text|>"),
    _Family("codespec", *_PIPED, separator="<|file_sep|>", suffix_begins=True),
    _Family("piped", *_PIPED),
    _Family("codeqwen", *_PLAIN, separator="<file_sep>", mark="<reponame>"),
    _Family("starcoder2", *_PLAIN, separator="<file_sep>"),
    _Family("granite", *_PLAIN, mark="<reponame>"),
    _Family("starcoder", *_PLAIN),
    _Family("santacoder", *_SANTACODER),
    _Family("deepseek", *_DEEPSEEK),
    _Family("codellama", f"{_GAP}<PRE>", f"{_GAP}<SUF>", f"{_GAP}<MID>"),
    _Family("codestral", "[PREFIX]", "[SUFFIX]", "", order="suffix_first"),
    _Family("glm", *_GLM),
    _Family("seed-coder", *_SEED, order="suffix_first"),
    _Family("falcon-h1", *_FALCON),
)

# Families by model name; the first match wins. Code Llama is left out because its markers are written differently in
# text, as are models that have the markers but were not trained to fill in (Qwen2.5 without Coder).
_NAMES = tuple(
    (re.compile(pattern, re.IGNORECASE), family)
    for pattern, family in (
        (r"codeqwen", "codeqwen"),
        (r"qwen-?[23](\.5|-5)?-?coder", "qwen"),
        (r"codegemma", "codegemma"),
        (r"granite-?4", "granite4"),
        (r"granite.*code", "granite"),
        (r"starcoder-?2", "starcoder2"),
        (r"santacoder", "santacoder"),
        (r"starcoder", "starcoder"),
        (r"deepseek-?coder", "deepseek"),
        (r"codestral", "codestral"),
        (r"codegeex|glm-?4", "glm"),
        (r"seed-?coder", "seed-coder"),
        (r"falcon-?h1.*coder", "falcon-h1"),
    )
)


FAMILIES = tuple(family.name for family in _FAMILIES)


def family_named(model: str) -> str:
    """Return the family of a model, given the model's hub id or path, or "" if the family is unknown."""
    name = re.sub(r"[_\s]", "-", model.replace("\\", "/").rpartition("/")[2])
    return next((family for pattern, family in _NAMES if pattern.search(name)), "")


def family_tokens(name: str) -> tuple[str, ...]:
    """Return all control tokens of a model family."""
    return next(family.tokens for family in _FAMILIES if family.name == name)


def find_template(tokenizer: TextTokenizer) -> FimTemplate | FimMissing:
    """Return the fill-in-the-middle template of a model, or the reason why there is none.

    The keys `fim_prefix`, `fim_suffix` and `fim_middle` of tokenizer_config.json override the markers of the known
    families. The order is `spm`, in which typing only appends to the prompt, if tokenizer_config.json contains "spm" as
    the value of `codespec_fim_order` or in the list `codespec_fim_orders`.
    """
    config, vocab = tokenizer.config, tokenizer.vocab
    prefix, suffix, middle = (token_content(config.get(key)) for key in ("fim_prefix", "fim_suffix", "fim_middle"))
    declared = prefix and suffix and middle
    families = (_Family("declared", prefix, suffix, middle),) if declared else _FAMILIES
    family = next((each for each in families if all(name in vocab for name in each.tokens)), None)
    if family is None:
        for each in families:
            missing = [name for name in each.needed if name not in vocab]
            if len(missing) < len(each.needed):
                return FimMissing(f"the vocabulary lacks {' and '.join(missing)}, so the model cannot fill in")
        return FimMissing("the vocabulary contains no fill-in-the-middle tokens")
    knows_spm = config.get("codespec_fim_order") == "spm" or "spm" in config.get("codespec_fim_orders", ())
    return FimTemplate(
        family=family.name,
        order="spm" if family.order == "psm" and knows_spm else family.order,
        prefix_id=vocab[family.prefix],
        suffix_id=vocab[family.suffix],
        middle_id=vocab.get(family.middle),
        separator_id=vocab.get(family.separator),
        suffix_begins=family.suffix_begins,
    )


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """The parts of a ready-made prompt, which a client has built with markers."""

    prefix: str
    suffix: str
    files: tuple[tuple[str, str], ...] = ()  # path and text of each of the last MAX_FILES files before the prefix
    left_out: int = 0  # number of earlier files, which are ignored


# A chat template puts this after a prompt that a client sends as a user's message. Nothing else may follow the last
# marker, so that source text that mentions markers is not mistaken for a prompt.
_CHAT_END = re.compile(
    r"\s*(?:(?:\[MIDDLE\]|<\|im_end\|>|<\|im_start\|>assistant|<end_of_turn>|<start_of_turn>model|<\|assistant\|>)\s*)*"
)


@dataclass(frozen=True, slots=True)
class _Spelling:
    """The markers of a prompt as clients write them, including adjacent spaces."""

    prefix: str
    suffix: str
    middle: str
    separator: str = ""  # before each file
    head: str = ""  # after the last file
    suffix_first: bool = False
    prefix_last: bool = False  # whether the prefix follows the marker `middle`

    def split(self, prompt: str) -> tuple[str, str, str] | None:
        """Return the text before the markers, the prefix and the suffix, or None if the text is not a whole prompt."""
        opens, divides = (self.suffix, self.prefix) if self.suffix_first else (self.prefix, self.suffix)
        places = self._places(prompt, opens, divides)
        if places is None:
            return None
        first, second, end = places
        after = prompt[end + len(self.middle) :]
        one, other = prompt[first + len(opens) : second], prompt[second + len(divides) : end]
        if self.prefix_last:
            return (prompt[:first], after, other) if after and not one else None
        if not self.middle:
            other = other.removesuffix("[MIDDLE]")
        elif _CHAT_END.fullmatch(after) is None:
            return None
        return (prompt[:first], other, one) if self.suffix_first else (prompt[:first], one, other)

    def _places(self, prompt: str, opens: str, divides: str) -> tuple[int, int, int] | None:
        """Return the offsets of the three markers; a missing third marker counts as the end of the text."""
        # Source text between the markers may contain balanced groups of the same markers.
        if opens not in prompt or divides not in prompt or self.middle not in prompt:
            return None
        if not self.middle or self.prefix_last:
            once = all(prompt.count(name) == 1 for name in (opens, divides, self.middle) if name)
            first, second = prompt.index(opens), prompt.find(divides)
            end = prompt.rfind(self.middle) if self.middle else len(prompt)
            return (first, second, end) if once and first < second < end + (not self.middle) else None
        marks = list(re.finditer("|".join(map(re.escape, (opens, divides, self.middle))), prompt))
        depth, dividing = 0, list[int]()
        for mark in marks:
            depth += (mark[0] == opens) - (mark[0] == self.middle)
            if depth < (mark is not marks[-1]):
                return None
            if depth == 1 and mark[0] == divides:
                dividing.append(mark.start())
        whole = depth == 0 and len(dividing) == 1 and marks[-1][0] == self.middle
        return (marks[0].start(), dividing[0], marks[-1].start()) if whole else None


# The first spelling that finds files wins, else the first that fits.
_SPELLINGS = (
    _Spelling(*_PIPED, separator="<|file_sep|>"),  # Qwen, Granite
    _Spelling(*_PIPED, separator="<|file_separator|>"),  # CodeGemma
    _Spelling(*_PLAIN, separator="<file_sep>"),  # StarCoder, CodeQwen, StableCode, Granite
    _Spelling(*_PLAIN, separator="<filename>", suffix_first=True),  # Mellum
    _Spelling(*_PLAIN, separator="<file_sep>", prefix_last=True),  # StarCoder, suffix first
    _Spelling(*_SANTACODER),
    _Spelling(*_DEEPSEEK),
    _Spelling("<PRE> ", " <SUF>", " <MID>"),  # Code Llama
    _Spelling("<PRE>", "<SUF>", "<MID>"),
    _Spelling("[PREFIX]", "[SUFFIX]", "", separator="+++++ ", suffix_first=True),  # Codestral
    _Spelling(*_GLM, separator="###PATH:", head="###LANGUAGE:", suffix_first=True),  # CodeGeeX
    _Spelling(*_GLM),
    _Spelling(*_SEED),
    _Spelling(*_SEED, suffix_first=True),
    _Spelling(*_FALCON),
)


def split_ready_made(prompt: str) -> ReadyMade | None:
    """Return the parts of a prompt that contains a model family's markers as text, or None for any other text."""
    outer = _split_once(prompt)
    if outer is None or outer.files or outer.suffix.strip():
        return outer
    # The prefix may be a ready-made prompt, but only once more: a hostile prompt may nest thousands of times.
    return _split_once(outer.prefix) or outer


def _split_once(prompt: str) -> ReadyMade | None:
    plain: ReadyMade | None = None
    for spelling in _SPELLINGS:
        parts = spelling.split(prompt)
        if parts is None:
            continue
        before, prefix, suffix = parts
        listed = before.partition(spelling.head)[0] if spelling.head else before
        files = _files(listed, spelling)
        if files:
            left_out = max(0, listed.count(spelling.separator) - MAX_FILES)
            return ReadyMade(prefix, suffix, files, left_out)
        plain = plain or ReadyMade(prefix, suffix)
    return plain


def _files(listed: str, spelling: _Spelling) -> tuple[tuple[str, str], ...]:
    """Return the path and text of each file; the path is "" if the client sent none."""
    if not spelling.separator:
        return ()
    pieces = listed.rsplit(spelling.separator, MAX_FILES)[1:]
    parts = [(piece, *piece.partition("\n")[::2]) for piece in pieces]
    named = [(path.strip(), text) if _is_path(path.strip()) else ("", part) for part, path, text in parts]
    return tuple((path, text) for path, text in named if text.strip())


def _is_path(line: str) -> bool:
    return len(line) <= MAX_PATH and _PATH.fullmatch(line) is not None
