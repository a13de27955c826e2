"""A left-to-right lexer that tracks open brackets, strings and comments, without a grammar.

Its state at a position depends only on the bytes before it, so incremental and fresh runs give the same result.
"""

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
        anchors=tuple(re.compile(rb"\n(?=" + anchor + b")") for anchor in _anchors(data)),
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


# An opener and its position, or -1 if only a sent cursor shows that it is open.
Entry = tuple[Opener, int]


_SKIPPED = frozenset({"atom", "flat", "escape"})


@dataclass(frozen=True, slots=True)
class LexState:
    """The lexer state at `pos`.

    `stack` holds the open entries, outermost first; `closed` the positions of the last closed bracket pair, closer
    first; `pending` the heredocs that begin on the next line; `comment` the start of the line comment around `pos`, or
    -1.
    """

    pos: int = 0
    stack: tuple[Entry, ...] = ()
    closed: tuple[int, int] = (-1, -1)
    pending: tuple[bytes, ...] = ()
    comment: int = -1

    @property
    def brackets(self) -> tuple[Entry, ...]:
        """The open brackets, without strings, comments and heredocs."""
        return tuple(entry for entry in self.stack if entry[0].sort == BRACKET)


class Lexer:
    """Lexes one text incrementally.

    `lines` collects the start of each line that begins in code, with the number of entries open there. `dropped`
    collects the entries that ended without a closer, and `repairs` the positions where their closers are missing.
    """

    def __init__(self, rules: LexerRules, text: bytes) -> None:
        self.rules, self.text = rules, text
        self.lines: list[tuple[int, int]] = []
        self.dropped: list[Entry] = []
        self.repairs: list[tuple[int, bytes]] = []

    def run(self, state: LexState, end: int) -> LexState:
        """Lex from `state.pos` to `end` and return the state there."""
        self._stack = list(state.stack)
        self._closed, self._pending, self._comment = state.closed, list(state.pending), -1
        pos, text, stack, code = state.pos, self.text, self._stack, self.rules.code
        while pos < end:
            inside = stack[-1][0].inside if stack else None
            match = (inside or code).search(text, pos, end)
            if match is None:
                break
            pos = match.end()
            if match.lastgroup not in _SKIPPED:
                self._event(match, inside is not None, end)
        return LexState(end, tuple(self._stack), self._closed, tuple(self._pending), self._comment)

    def forget(self, pos: int) -> None:
        """Discard the lines and repairs that a run from `pos` will find again, and all of `dropped`."""
        while self.lines and self.lines[-1][0] > pos:
            self.lines.pop()
        while self.repairs and self.repairs[-1][0] >= pos:
            self.repairs.pop()
        self.dropped.clear()

    def _event(self, match: re.Match[bytes], inside: bool, end: int) -> None:
        group = match.lastgroup
        if group == "open" or group == "long":
            self._stack.append((self._opener(match), match.start()))
        elif group == "close" and inside:
            self._stack.pop()
        elif group == "close":
            self._close(match)
        elif group == "line":
            self._line(match.end())
        elif group == "end":
            self._drop(len(self._stack) - 1, match.start())
            self._line(match.end())
        elif group == "comment" and match.end() == end:
            self._comment = match.start()
        elif group == "heredoc":
            self._pending.append(self._heredoc_word(match))

    def _opener(self, match: re.Match[bytes]) -> Opener:
        opener = self.rules.openers[match.group()]
        if opener.block and opener.open == b"{":
            before = self.text[max(0, match.start() - 32) : match.start()]
            if self.rules.value.search(before[before.rfind(b"\n") + 1 :]):
                return self.rules.values[opener.open]
        return opener

    def _heredoc_word(self, match: re.Match[bytes]) -> bytes:
        assert self.rules.heredoc is not None
        again = self.rules.heredoc.match(match.group())
        return again[1] if again else b""

    def _line(self, start: int) -> None:
        if self._pending:
            self._stack.append((heredoc_opener(self._pending.pop(0)), start))
            return
        if self._stack:
            self._end_line(start)
        self.lines.append((start, len(self._stack)))

    def _end_line(self, start: int) -> None:
        """Drop the entries that the new line shows to have been left open."""
        for depth, (opener, _) in enumerate(self._stack):
            if not opener.multiline:
                self._drop(depth, start - 1)
                break
        before = len(self._stack)
        while self._stack and self._in_plain_bracket():
            pos = self._left_open_at(start, self._stack[-1][1])
            if pos < 0:
                break
            self._drop(len(self._stack) - 1, pos)
        if len(self._stack) < before:
            self.repairs.append((start, self.rules.terminator))

    def _in_plain_bracket(self) -> bool:
        """Return whether the innermost entry is a bracket that is neither a block nor an interpolation in a string."""
        opener = self._stack[-1][0]
        inside_text = len(self._stack) > 1 and self._stack[-2][0].sort != BRACKET
        return opener.sort == BRACKET and not opener.block and not inside_text

    def _left_open_at(self, start: int, opened: int) -> int:
        """Return the position where a bracket that was left open should have been closed, or -1 if it may continue.

        `opened` is the bracket's position, `start` that of the new line. The closer belongs before the new line if that
        begins a statement: with a word that never occurs inside brackets, or at most as deep as the bracket's line. It
        belongs before the final colon if the line above is a head.
        """
        rules, text = self.rules, self.text
        if rules.restart and rules.restart.match(text, start):
            return start
        if opened < 0:
            return -1
        first = _first_word(text, start)
        above = text.rfind(b"\n", 0, opened) + 1
        if first >= 0 and first - start <= _first_column(text, above) - above:
            return start
        end = start - 1
        if rules.heads is None or text.rfind(b"\n", above, end) >= 0 or not rules.heads.match(text, above):
            return -1
        shown = len(text[above:end].rstrip())
        return above + shown - 1 if text[above + shown - 1 : above + shown] == b":" else -1

    def _drop(self, depth: int, pos: int) -> None:
        """Treat the entries from `depth` on as ended at `pos`."""
        for opener, start in reversed(self._stack[depth:]):
            self.dropped.append((opener, start))
            self.repairs.append((pos, opener.close))
        del self._stack[depth:]

    def _close(self, match: re.Match[bytes]) -> None:
        wanted = match.group()
        for depth in range(len(self._stack) - 1, -1, -1):
            opener, start = self._stack[depth]
            if opener.sort != BRACKET:
                break
            if opener.close == wanted:
                self._drop(depth + 1, match.start())
                del self._stack[depth:]
                self._closed = (match.start(), start)
                return


def _first_column(text: bytes, start: int) -> int:
    while text[start : start + 1] in (b" ", b"\t"):
        start += 1
    return start


def _first_word(text: bytes, start: int) -> int:
    """Return the position of the line's first word, or -1 if the line is blank or begins with something else."""
    first = _first_column(text, start)
    return first if text[first : first + 1].isalpha() else -1


def in_text(state: LexState) -> Opener | None:
    """Return the opener of the string, block comment or heredoc around the position, or None."""
    if state.stack and state.stack[-1][0].sort != BRACKET:
        return state.stack[-1][0]
    return None
