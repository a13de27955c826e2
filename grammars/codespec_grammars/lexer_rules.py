"""Compile the brackets, strings, comments and words of a language to the regular expressions of its lexer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from codespec_grammars.language import Language, LiteralRule, StringRule

BRACKET, STRING, COMMENT, HEREDOC = range(4)
PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_NEVER = b"(?!)"
_PLACES = re.compile(r"\{1\}|\{pair\}")


@dataclass(frozen=True, slots=True)
class Opener:
    """The opener of a bracket, string, block comment or heredoc."""

    sort: int
    open: bytes
    close: bytes
    inside: re.Pattern[bytes] | None = None  # pattern of the next relevant token, or None if code follows
    block: bool = False
    multiline: bool = True
    documents: bool = False


Entry = tuple[Opener, int]  # an open opener and its position, -1 if the position is above the text


class Literal(NamedTuple):
    """A compiled `LiteralRule`."""

    rule: LiteralRule
    pattern: re.Pattern[bytes]
    before: re.Pattern[bytes]


@dataclass(frozen=True, slots=True)
class LexerRules:
    """The lexer rules of a language."""

    data: Language
    code: re.Pattern[bytes]  # pattern of the next relevant token in code; the matching group names the kind of token
    openers: dict[bytes, Opener]
    values: dict[bytes, Opener]  # openers of block brackets in values, where they contain no statements
    value: re.Pattern[bytes]  # pattern of the text before such a bracket
    literals: tuple[Literal, ...]
    heredoc: re.Pattern[bytes] | None
    indented_parent: re.Pattern[bytes]
    beginning: tuple[Entry, ...]  # entries that are open at the start of a file
    restart: re.Pattern[bytes] | None
    imports: re.Pattern[bytes] | None
    signatures: re.Pattern[bytes] | None
    heads: re.Pattern[bytes] | None
    flat: re.Pattern[bytes] | None
    item: re.Pattern[bytes]
    anchors: tuple[re.Pattern[bytes], ...]
    docs: tuple[bytes, ...]
    line_comments: tuple[bytes, ...]


def compile_rules(data: Language) -> LexerRules:
    """Compile the lexer rules of a language."""
    rules: tuple[StringRule | LiteralRule, ...] = (*data.strings, *data.literals)
    marks = [mark for rule in rules for mark in rule.interpolation]
    openers = {mark: Opener(BRACKET, mark.encode(), PAIRS.get(mark[-1], mark[-1]).encode()) for mark in marks}
    for mark, close in (tuple(pair) for pair in data.brackets):
        openers[mark] = Opener(BRACKET, mark.encode(), close.encode(), block=mark in data.block_brackets)
    openers |= {rule.open: _string(rule) for rule in data.strings}
    openers |= {mark[0]: _comment(data, *mark) for mark in data.block_comments}
    words = b"".join(rb"|\b" + word.encode() for word in data.value_words)
    goes_on = _words(data.continuation_words)
    item = (b"(?!" + goes_on.pattern + b")" if goes_on else b"") + b"(?:" + data.item.encode() + b")"
    anchors = [anchor.encode() for anchor in data.anchors] or [item]
    begins_in = (rule for rule in data.literals if data.begins_in and re.fullmatch(rule.pattern, data.begins_in))
    return LexerRules(
        data=data,
        values={opener.open: replace(opener, block=False) for opener in openers.values() if opener.block},
        value=re.compile(b"(?:" + data.value_before.encode() + words + rb")[ \t]*$"),
        code=_code(data),
        openers={mark.encode(): opener for mark, opener in openers.items()},
        literals=tuple(
            Literal(rule, re.compile(rule.pattern.encode(), re.M), re.compile(rule.before.encode()))
            for rule in data.literals
        ),
        heredoc=re.compile(data.heredoc.encode(), re.M) if data.heredoc else None,
        indented_parent=re.compile(data.indented_parent.encode()),
        beginning=tuple((literal_opener(rule, data.begins_in.encode()), 0) for rule in begins_in)[:1],
        restart=_words(data.restart_words, data.restart_pattern),
        imports=_words(data.import_words),
        signatures=_words(data.signature_words, data.signature_pattern),
        heads=_words(data.head_words),
        flat=_words(data.flat_words),
        item=re.compile(item),
        anchors=tuple(re.compile(rb"\n(?=" + anchor + b")") for anchor in anchors),
        docs=tuple(mark.encode() for mark in data.doc_comments),
        line_comments=tuple(mark.encode() for mark in data.line_comments),
    )


@lru_cache(maxsize=64)
def heredoc_opener(word: bytes, rest: bytes) -> Opener:
    """Return the opener of a heredoc that ends at a line that consists of `word` and a match of `rest`."""
    inside = re.compile(rb"(?P<close>^[ \t]*" + re.escape(word) + b"(?=" + rest + b"))", re.M)
    return Opener(HEREDOC, b"", b"\n" + word + b"\n", inside)


@lru_cache(maxsize=64)
def indented_opener(columns: int) -> Opener:
    """Return the opener of an indented text that ends before the next line with an indent of at most `columns`."""
    return Opener(HEREDOC, b"", b"\n", re.compile(rb"(?P<leave>^(?= {0,%d}[^\s]))" % columns, re.M))


@lru_cache(maxsize=256)
def literal_opener(rule: LiteralRule, open: bytes, group: str = "", columns: int = 0) -> Opener:
    """Return a literal's opener; `open` is its text, `group` is group 1 of the match, and `columns` is the indent."""
    pair = PAIRS.get(group, group)
    close = rule.close.replace("{1}", group).replace("{pair}", pair).encode("latin-1")
    escaped = {"{1}": re.escape(group), "{pair}": re.escape(pair)}
    ends = _PLACES.sub(lambda place: escaped[place.group()], rule.close_pattern).encode("latin-1") or re.escape(close)
    more = []
    if rule.nested and pair != group:
        more.append(b"(?P<nest>" + re.escape(group).encode("latin-1") + b")")
    if rule.indented:
        more.append(rb"(?P<leave>^(?= {0,%d}[^\s]))" % columns)
    inside = _inside(ends or _NEVER, rule.escape, rule.interpolation, rule.multiline, more)
    return Opener(COMMENT if rule.comment else STRING, open, close, inside, multiline=rule.multiline)


def _inside(
    close: bytes, escape: str, opens: tuple[str, ...], multiline: bool, more: Sequence[bytes] = ()
) -> re.Pattern[bytes]:
    """Return the pattern of the relevant tokens inside a string or comment that ends with a match of `close`."""
    parts = [b"(?P<escape>" + escape.encode() + b")"] if escape else []
    parts += [b"(?P<open>" + _any(opens) + b")"] if opens else []
    parts += [b"(?P<close>" + close + b")", *more]
    return re.compile(b"|".join(parts if multiline else [*parts, rb"(?P<end>\n)"]), re.M)


def _string(rule: StringRule) -> Opener:
    inside = _inside(re.escape(rule.close.encode()), rule.escape, rule.interpolation, rule.multiline)
    sort = BRACKET if rule.bracket else STRING
    return Opener(sort, rule.open.encode(), rule.close.encode(), inside, multiline=rule.multiline)


def _comment(data: Language, mark: str, close: str) -> Opener:
    inside = _inside(re.escape(close.encode()), "", (mark,) if data.nested_comments else (), True)
    return Opener(COMMENT, mark.encode(), close.encode(), inside, documents=mark in data.doc_comments)


def _code(data: Language) -> re.Pattern[bytes]:
    marks = [*(mark[0] for mark in data.block_comments), *(rule.open for rule in data.strings)]
    brackets = [pair[0] for pair in data.brackets]
    parts = [rb"(?P<line>\n)"]
    if data.literals:
        parts.append(b"(?P<literal>" + b"|".join(rule.pattern.encode() for rule in data.literals) + b")")
    if data.indented_text:
        parts.append(b"(?P<indented>" + data.indented_text.encode() + b")")
    if data.atoms:
        parts.append(b"(?P<atom>" + b"|".join(atom.encode() for atom in data.atoms) + b")")
    if data.heredoc:
        parts.append(b"(?P<heredoc>" + data.heredoc.encode() + b")")
    long = sorted((mark for mark in marks if len(mark) > 1), key=len, reverse=True)
    # `/**/` is a whole comment, not the opener of a `/** */` comment
    parts += [b"(?P<long>" + _any(long).replace(rb"/\*\*", rb"/\*\*(?!/)") + b")"] if long else []
    if data.line_comments:
        parts.append(b"(?P<comment>(?:" + _any(data.line_comments) + b")" + data.line_comment_rest.encode() + b")")
    parts.append(b"(?P<flat>" + _flat(data) + b")")
    parts.append(b"(?P<open>" + _any([*(mark for mark in marks if len(mark) == 1), *brackets]) + b")")
    parts.append(b"(?P<close>" + _any([pair[1] for pair in data.brackets]) + b")")
    firsts = {mark[0] for mark in (*marks, *data.line_comments, *brackets)} | {pair[1] for pair in data.brackets}
    # Matching one character of a set first makes `re` skip all other characters without trying `parts` there.
    first = b"[" + re.escape("".join(firsts | set("\n" + data.starts)).encode()) + b"]"
    return re.compile(first + b"(?<=(?=" + b"|".join(parts) + rb")[\s\S])", re.M)


def _any(marks: Sequence[str]) -> bytes:
    return b"|".join(re.escape(mark.encode()) for mark in marks)


def _flat(data: Language) -> bytes:
    """Return a pattern for strings and brackets that end on their line without nesting, which the lexer skips whole."""
    marks = [*data.line_comments, *(mark[0] for mark in data.block_comments), *(rule.open[-1] for rule in data.strings)]
    special = re.escape("".join({mark[0] for mark in marks}).encode()) + rb"\\\n<"
    plain = [rule for rule in data.strings if not rule.multiline and len(rule.open) == 1 and rule.open == rule.close]
    quotes = {re.escape(rule.open.encode()) for rule in plain if not rule.interpolation}
    parts = [quote + b"[^" + quote + rb"\\\n]*" + quote for quote in sorted(quotes)]
    inside = b"[^" + special + re.escape("".join(data.brackets).encode()) + b"]*"
    parts += [re.escape(pair[0].encode()) + inside + re.escape(pair[1].encode()) for pair in data.brackets]
    return b"|".join(parts)


def _words(words: tuple[str, ...], pattern: str = "") -> re.Pattern[bytes] | None:
    """Return a pattern for a line that begins with one of the words or with `pattern`, or None if both are empty."""
    listed = b"|".join(rb"\b" + re.escape(w.encode()) if w[0].isalpha() else re.escape(w.encode()) for w in words)
    patterns = [rb"[ \t]*(?:(?:" + listed + rb")(?![\w]))"] if words else []
    patterns += [rb"[ \t]*(?:" + pattern.encode() + b")"] if pattern else []
    return re.compile(b"|".join(patterns), re.M) if patterns else None
