"""Compile a language's brackets, strings, comments and words to the regular expressions that its lexer uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from codespec_grammars.language import Language, LiteralRule, StringRule

BRACKET, STRING, COMMENT, HEREDOC = range(4)
PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_NEVER = b"(?!)"
_PLACES = re.compile(r"\{1\}|\{pair\}")


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


# An opener and its position, or -1 if only a sent cursor shows that it is open.
Entry = tuple[Opener, int]


@dataclass(frozen=True, slots=True)
class Literal:
    """A compiled `LiteralRule`."""

    rule: LiteralRule
    pattern: re.Pattern[bytes]
    before: re.Pattern[bytes]


@dataclass(frozen=True, slots=True)
class LexerRules:
    """The lexer rules of a language.

    `code` finds the next event in code: the group that matched is its text, and the group's name its kind.
    """

    code: re.Pattern[bytes]
    openers: dict[bytes, Opener]
    values: dict[bytes, Opener]  # the block brackets in a value position, where they contain no statements
    value: re.Pattern[bytes]  # the text before such a bracket
    literals: tuple[Literal, ...]
    heredoc: re.Pattern[bytes] | None
    heredoc_rest: bytes
    arithmetic: bytes
    indented_text: re.Pattern[bytes] | None
    indented_parent: re.Pattern[bytes]
    beginning: tuple[Entry, ...]  # open at the start of a file
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
    rules: tuple[StringRule | LiteralRule, ...] = (*data.strings, *data.literals)
    openers = {mark.encode(): _interpolation(mark) for rule in rules for mark in rule.interpolation}
    openers |= {pair[0].encode(): _bracket(data, pair) for pair in data.brackets}
    openers |= {rule.open.encode(): _string(rule) for rule in data.strings}
    openers |= {mark[0].encode(): _comment(data, *mark) for mark in data.block_comments}
    values = {mark: replace(opener, block=False) for mark, opener in openers.items() if opener.block}
    return LexerRules(
        values=values,
        value=_value(data),
        code=_code(data),
        openers=openers,
        literals=tuple(_literal(rule) for rule in data.literals),
        heredoc=re.compile(data.heredoc.encode(), re.M) if data.heredoc else None,
        heredoc_rest=data.heredoc_rest.encode(),
        arithmetic=data.arithmetic.encode(),
        indented_text=re.compile(data.indented_text.encode()) if data.indented_text else None,
        indented_parent=re.compile(data.indented_parent.encode()),
        beginning=_beginning(data),
        restart=_either(data.restart_words, data.restart_pattern),
        imports=_words(data.import_words),
        signatures=_either(data.signature_words, data.signature_pattern),
        heads=_words(data.head_words),
        flat=_words(data.flat_words),
        goes_on=_words(data.continuation_words),
        item=re.compile(_item(data)),
        anchors=tuple(re.compile(rb"\n(?=" + anchor + b")") for anchor in _anchors(data)),
        terminator=data.terminator.encode(),
        docs=tuple(mark.encode() for mark in data.doc_comments),
        line_comments=tuple(mark.encode() for mark in data.line_comments),
    )


@lru_cache(maxsize=64)
def heredoc_opener(word: bytes, rest: bytes) -> Opener:
    """Return the opener of a heredoc that ends with a line that begins with `word`, followed by `rest`."""
    inside = re.compile(rb"(?P<close>^[ \t]*" + re.escape(word) + b"(?=" + rest + b"))", re.M)
    return Opener(HEREDOC, b"", b"\n" + word + b"\n", inside)


@lru_cache(maxsize=64)
def indented_opener(columns: int) -> Opener:
    """Return the opener of a text that ends before the first line with an indent of at most `columns`."""
    return Opener(HEREDOC, b"", b"\n", re.compile(rb"(?P<leave>^(?= {0,%d}[^\s]))" % columns, re.M))


@lru_cache(maxsize=256)
def literal_opener(rule: LiteralRule, open: bytes, group: str = "", columns: int = 0) -> Opener:
    """Return the opener of a literal. `group` is the first group of its opener, `columns` its line's indent."""
    pair = PAIRS.get(group, group)
    close = rule.close.replace("{1}", group).replace("{pair}", pair).encode("latin-1")
    escaped = {"{1}": re.escape(group), "{pair}": re.escape(pair)}
    ends = _PLACES.sub(lambda place: escaped[place.group()], rule.close_pattern).encode("latin-1") or re.escape(close)
    parts = [b"(?P<escape>" + rule.escape.encode() + b")"] if rule.escape else []
    if rule.interpolation:
        parts.append(b"(?P<open>" + _any(rule.interpolation) + b")")
    parts.append(b"(?P<close>" + (ends or _NEVER) + b")")
    if rule.nested and pair != group:
        parts.append(b"(?P<nest>" + re.escape(group).encode("latin-1") + b")")
    if rule.indented:
        parts.append(rb"(?P<leave>^(?= {0,%d}[^\s]))" % columns)
    if not rule.multiline:
        parts.append(rb"(?P<end>\n)")
    sort = COMMENT if rule.comment else STRING
    return Opener(sort, open, close, re.compile(b"|".join(parts), re.M), multiline=rule.multiline)


def _literal(rule: LiteralRule) -> Literal:
    return Literal(rule, re.compile(rule.pattern.encode(), re.M), re.compile(rule.before.encode()))


def _beginning(data: Language) -> tuple[Entry, ...]:
    mark = data.begins_in
    rules = (rule for rule in data.literals if mark and re.fullmatch(rule.pattern, mark))
    return tuple((literal_opener(rule, mark.encode()), 0) for rule in rules)[:1]


def _bracket(data: Language, pair: str) -> Opener:
    return Opener(BRACKET, pair[0].encode(), pair[1].encode(), block=pair[0] in data.block_brackets)


def _interpolation(mark: str) -> Opener:
    return Opener(BRACKET, mark.encode(), PAIRS.get(mark[-1], mark[-1]).encode())


def _string(rule: StringRule) -> Opener:
    parts = [b"(?P<escape>" + rule.escape.encode() + b")"] if rule.escape else []
    if rule.interpolation:
        parts.append(b"(?P<open>" + _any(rule.interpolation) + b")")
    parts.append(b"(?P<close>" + re.escape(rule.close.encode()) + b")")
    if not rule.multiline:
        parts.append(rb"(?P<end>\n)")
    inside = re.compile(b"|".join(parts))
    sort = BRACKET if rule.bracket else STRING
    return Opener(sort, rule.open.encode(), rule.close.encode(), inside, multiline=rule.multiline)


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
    # Matching one character of a set first and looking back at it is how `re` skips all others without trying `parts`.
    first = b"[" + re.escape("".join(firsts | set("\n" + data.starts)).encode()) + b"]"
    return re.compile(first + b"(?<=(?=" + b"|".join(parts) + rb")[\s\S])", re.M)


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
