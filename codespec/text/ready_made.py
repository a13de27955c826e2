"""Take apart prompts that clients assembled themselves, with a model family's markers spelled as text.

The table covers what Continue, Zed, Tabby, twinny, minuet and llm-ls send, whatever the model. Needs no vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATH = re.compile(r"[^\s()=;]*[./\\][^\s()=;]*")


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """Parts of a ready-made prompt; `files` are (path, text) of the files before the prefix."""

    prefix: str
    suffix: str
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Three markers as clients write them, including adjacent spaces.

    `separator` precedes each file, `head` follows the files, and `tail` is a pattern for text after the last marker.
    """

    prefix: str
    suffix: str
    middle: str
    separator: str = ""
    head: str = ""
    suffix_first: bool = False
    tail: str = ""

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(name for name in (self.prefix, self.suffix, self.middle) if name)

    @property
    def shape(self) -> re.Pattern[str]:
        prefix, suffix = f"{re.escape(self.prefix)}(?P<prefix>.*)", f"{re.escape(self.suffix)}(?P<suffix>.*)"
        parts = suffix + prefix if self.suffix_first else prefix + suffix
        return re.compile(f"(?P<before>.*?){parts}{re.escape(self.middle)}{self.tail}", re.DOTALL)


_PIPED = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_PLAIN = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_CODE = ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")
_SEED = ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
_BEGIN, _HOLE, _END = (f"<\uff5cfim\u2581{name}\uff5c>" for name in ("begin", "hole", "end"))
# The first match wins; of two spellings with the same markers, the one whose files are present.
_SPELLINGS = (
    _Spelling(*_PIPED, separator="<|file_sep|>"),  # Qwen, Granite
    _Spelling(*_PIPED, separator="<|file_separator|>"),  # CodeGemma
    _Spelling(*_PLAIN, separator="<file_sep>"),  # StarCoder, CodeQwen, StableCode, Granite
    _Spelling(*_PLAIN, separator="<filename>", suffix_first=True),  # Mellum
    _Spelling("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    _Spelling(_BEGIN, _HOLE, _END),  # DeepSeek
    _Spelling("<PRE> ", " <SUF>", " <MID>"),  # Code Llama
    _Spelling("<PRE>", "<SUF>", "<MID>"),
    _Spelling("[PREFIX]", "[SUFFIX]", "", separator="+++++ ", suffix_first=True),  # Codestral
    _Spelling(
        *_CODE, separator="###PATH:", head="###LANGUAGE:", suffix_first=True, tail=r"(?:<\|assistant\|>\s*)?"
    ),  # CodeGeeX
    _Spelling(*_CODE),  # GLM
    _Spelling(*_SEED),  # Seed-Coder
    _Spelling(*_SEED, suffix_first=True),
    _Spelling("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon-H1
)


def split_ready_made(prompt: str) -> ReadyMade | None:
    """Return the parts of a prompt that spells a family's markers as text, or None for other text.

    Accepts only whole prompts, with each marker once and the last at the end, so that source text that mentions markers
    is not mistaken for one.
    """
    plain: ReadyMade | None = None
    for spelling in _SPELLINGS:
        once = all(prompt.count(name) == 1 for name in spelling.needed)
        match = spelling.shape.fullmatch(prompt) if once else None
        if match is None:
            continue
        files = _files(match["before"], spelling)
        if files:
            return ReadyMade(match["prefix"], match["suffix"], files)
        plain = plain or ReadyMade(match["prefix"], match["suffix"])
    return plain


def _files(before: str, spelling: _Spelling) -> tuple[tuple[str, str], ...]:
    """Return the path and text of each file; some clients send no paths."""
    if not spelling.separator:
        return ()
    pieces = (before.partition(spelling.head)[0] if spelling.head else before).split(spelling.separator)[1:]
    parts = [(piece, *piece.partition("\n")[::2]) for piece in pieces]
    named = [(path.strip(), text) if _PATH.fullmatch(path.strip()) else ("", part) for part, path, text in parts]
    return tuple((path, text) for path, text in named if text.strip())
