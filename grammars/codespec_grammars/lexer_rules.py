"""Compile a language's markers, quotes and brackets into the regular expressions of its lexer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from codespec_grammars.language import Language, StringRule

BRACKET, STRING, COMMENT, HEREDOC = range(4)


@dataclass(frozen=True, slots=True)
class Opener:
    """A bracket, string, block comment or heredoc that can be open.

    `inside` finds the next event inside it; None means that code continues inside.
    """

    sort: int
    open: bytes
    close: bytes
    inside: re.Pattern[bytes] | None = None
    block: bool = False
    multiline: bool = True
    documents: bool = False


@dataclass(frozen=True, slots=True)
class LexerRules:
    """The lexer rules of a language. `code` finds the next event in code, whose kind is the group name."""

    code: re.Pattern[bytes]
    openers: dict[bytes, Opener]
    values: dict[bytes, Opener]  # the block brackets in a value position, where they contain no statements
    value: re.Pattern[bytes]  # the text before such a bracket
    heredoc: re.Pattern[bytes] | None
    restart: re.Pattern[bytes] | None
    imports: re.Pattern[bytes] | None
    signatures: re.Pattern[bytes] | None
    heads: re.Pattern[bytes] | None
    flat: re.Pattern[bytes] | None
    goes_on: re.Pattern[bytes] | None
    item: re.Pattern[bytes]
    anchors: tuple[re.Pattern[bytes], ...]
    terminator: bytes
    docs: tuple[bytes, ...]
    line_comments: tuple[bytes, ...]


def compile_rules(data: Language) -> LexerRules:
    """Compile the regular expressions of one language."""
    openers = {rule.interpolation.encode(): _interpolation(rule) for rule in data.strings if rule.interpolation}
    openers |= {pair[0].encode(): _bracket(data, pair) for pair in data.brackets}
    openers |= {rule.open.encode(): _string(rule) for rule in data.strings}
    openers |= {mark[0].encode(): _comment(data, *mark) for mark in data.block_comments}
    values = {mark: replace(opener, block=False) for mark, opener in openers.items() if opener.block}
    return LexerRules(
        values=values,
        value=_value(data),
        code=_code(data),
        openers=openers,
        heredoc=re.compile(data.heredoc.encode()) if data.heredoc else None,
        restart=_either(data.restart_words, data.restart_pattern),
        imports=_words(data.import_words),
        signatures=_either(data.signature_words, data.signature_pattern),
        heads=_words(data.head_words),
        flat=_words(data.flat_words),
        goes_on=_words(data.continuation_words),
        item=re.compile(_item(data)),
        anchors=tuple(re.compile(rb"\n(?=" + one + b")") for one in _anchors(data)),
        terminator=data.terminator.encode(),
        docs=tuple(mark.encode() for mark in data.doc_comments),
        line_comments=tuple(mark.encode() for mark in data.line_comments),
    )


@lru_cache(maxsize=64)
def heredoc_opener(word: bytes) -> Opener:
    """Return the opener of a heredoc that ends with a line containing only `word`."""
    inside = re.compile(rb"(?P<close>^[ \t]*" + re.escape(word) + rb"(?=\r?$))", re.M)
    return Opener(HEREDOC, b"", b"\n" + word + b"\n", inside)


def _bracket(data: Language, pair: str) -> Opener:
    return Opener(BRACKET, pair[0].encode(), pair[1].encode(), block=pair[0] in data.block_brackets)


def _interpolation(rule: StringRule) -> Opener:
    return Opener(BRACKET, rule.interpolation.encode(), {"{": b"}", "(": b")", "[": b"]"}[rule.interpolation[-1]])


def _string(rule: StringRule) -> Opener:
    parts = [b"(?P<escape>" + rule.escape.encode() + b")"] if rule.escape else []
    if rule.interpolation:
        parts.append(b"(?P<open>" + re.escape(rule.interpolation.encode()) + b")")
    parts.append(b"(?P<close>" + re.escape(rule.close.encode()) + b")")
    if not rule.multiline:
        parts.append(rb"(?P<end>\n)")
    inside = re.compile(b"|".join(parts))
    return Opener(STRING, rule.open.encode(), rule.close.encode(), inside, multiline=rule.multiline)


def _comment(data: Language, mark: str, close: str) -> Opener:
    ends = re.escape(close.encode())
    parts = [b"(?P<close>" + ends + b")"]
    if data.nested_comments:
        parts.append(b"(?P<open>" + re.escape(mark.encode()) + b")")
    documents = mark in data.doc_comments
    return Opener(COMMENT, mark.encode(), close.encode(), re.compile(b"|".join(parts)), documents=documents)


def _code(data: Language) -> re.Pattern[bytes]:
    marks = [*(mark[0] for mark in data.block_comments), *(rule.open for rule in data.strings)]
    brackets = [pair[0] for pair in data.brackets]
    parts = [rb"(?P<line>\n)"]
    if data.atoms:
        parts.append(b"(?P<atom>" + b"|".join(atom.encode() for atom in data.atoms) + b")")
    if data.heredoc:
        parts.append(b"(?P<heredoc>" + data.heredoc.encode() + b")")
    long = sorted((mark for mark in marks if len(mark) > 1), key=len, reverse=True)
    parts += [b"(?P<long>" + _any(long) + b")"] if long else []
    if data.line_comments:
        parts.append(b"(?P<comment>(?:" + _any(data.line_comments) + rb")[^\n]*)")
    parts.append(b"(?P<flat>" + _flat(data) + b")")
    parts.append(b"(?P<open>" + _any([*(mark for mark in marks if len(mark) == 1), *brackets]) + b")")
    parts.append(b"(?P<close>" + _any([pair[1] for pair in data.brackets]) + b")")
    return re.compile(b"|".join(parts))


def _any(marks: Sequence[str]) -> bytes:
    return b"|".join(re.escape(mark.encode()) for mark in marks)


def _flat(data: Language) -> bytes:
    """Return a pattern for strings and brackets that end on their line with nothing special inside.

    Most are like that, and the lexer skips each in one match.
    """
    marks = [*data.line_comments, *(mark[0] for mark in data.block_comments), *(rule.open[-1] for rule in data.strings)]
    special = re.escape("".join({mark[0] for mark in marks}).encode()) + rb"\\\n<"
    plain = [rule for rule in data.strings if not rule.multiline and len(rule.open) == 1 and rule.open == rule.close]
    quotes = {re.escape(rule.open.encode()) for rule in plain if not rule.interpolation}
    parts = [quote + b"[^" + quote + rb"\\\n]*" + quote for quote in sorted(quotes)]
    inside = b"[^" + special + re.escape("".join(data.brackets).encode()) + b"]*"
    parts += [re.escape(pair[0].encode()) + inside + re.escape(pair[1].encode()) for pair in data.brackets]
    return b"|".join(parts)


def _item(data: Language) -> bytes:
    """Return a pattern for the start of a line that begins an item, not one that continues the item above."""
    goes_on = _words(data.continuation_words)
    never = b"(?!" + goes_on.pattern + b")" if goes_on else b""
    return never + b"(?:" + data.item.encode() + b")"


def _anchors(data: Language) -> list[bytes]:
    return [anchor.encode() for anchor in data.anchors] or [_item(data)]


def _value(data: Language) -> re.Pattern[bytes]:
    words = b"".join(rb"|\b" + word.encode() for word in data.value_words)
    return re.compile(b"(?:" + data.value_before.encode() + words + rb")[ \t]*$")


def _either(words: tuple[str, ...], pattern: str) -> re.Pattern[bytes] | None:
    listed = _words(words)
    patterns = [listed.pattern] if listed else []
    if pattern:
        patterns.append(rb"[ \t]*(?:" + pattern.encode() + b")")
    return re.compile(b"|".join(patterns), re.M) if patterns else None


def _words(words: tuple[str, ...]) -> re.Pattern[bytes] | None:
    if not words:
        return None
    listed = b"|".join(rb"\b" + re.escape(w.encode()) if w[0].isalpha() else re.escape(w.encode()) for w in words)
    return re.compile(rb"[ \t]*(?:(?:" + listed + rb")(?![\w]))")
