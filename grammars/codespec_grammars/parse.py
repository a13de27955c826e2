"""Makes the text around a tip parse, and parses it: a placeholder at the tip, closers for what is open there and is not
closed to the right. Always parses from nothing: trees made from older ones differ where the code is broken.

py-tree-sitter (0.25, 0.26) never frees what a read callback returns. So texts are put into a few buffers that live as
long as the process does, and the callback returns parts of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from codespec_grammars.language import Language
from codespec_grammars.lexer import Entry, Lexer, LexState, in_text
from codespec_grammars.lexer_rules import BRACKET, LexerRules
from codespec_grammars.statement import begins_with, word_before

if TYPE_CHECKING:
    import tree_sitter

WORD = "CSPEC"
# Progress reports before a parse is given up; each is a hundred steps of the parser, in clean code 13 microseconds, in
# garbage up to 200. Dense clean code takes 17 per KB.
MOST_STEPS = 32
MOST_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Mended:
    """What follows the tip in the parsed text: the placeholder, the closers at the tip, the suffix, the closers that
    belong after it."""

    placeholder: bytes
    rest: bytes


def repaired(lexer: Lexer, start: int, tip: int) -> bytes:
    """The text from `start` to the tip with closers where something was left open."""
    pieces, last = [], start
    for pos, close in lexer.repairs:
        if pos < start or not close:
            continue
        at_line = lexer.text[pos - 1 : pos] == b"\n"
        pieces += [lexer.text[last:pos], close, b"\n" if at_line else b""]
        last = pos
    return b"".join([*pieces, lexer.text[last:tip]])


class Mender:
    """Mends for one suffix. What the suffix closes depends on the open things alone and is remembered per stack."""

    def __init__(self, data: Language, rules: LexerRules) -> None:
        self.data, self.rules = data, rules
        self._known: dict[tuple[tuple[tuple[bytes, bytes, bool], ...], bytes], tuple[bytes, bytes]] = {}

    def mend(self, text: bytes, tip: int, state: LexState, suffix: bytes) -> Mended:
        """What to put after the tip; `suffix` is already cut to its window."""
        at_tip, at_end = self._closers(state.stack, suffix)
        placeholder = self._placeholder(text, tip, state)
        end = suffix.find(b"\n")
        line = suffix if end < 0 else suffix[:end]
        if state.comment >= 0:  # closers would be part of the comment: they wait for its end
            return Mended(placeholder, line + (b"\n" + at_tip if at_tip else b"") + suffix[len(line) :] + at_end)
        if not line.strip() and self._ends_statement(state, at_tip):
            at_tip += self._end(text, tip, state)
        return Mended(placeholder, at_tip + suffix + at_end)

    def _end(self, text: bytes, tip: int, state: LexState) -> bytes:
        """What ends the statement at the tip: the rest of its head, or the terminator."""
        heads = self.rules.heads
        if heads is None or text[:tip].rstrip().endswith(b":") or not begins_with(heads, text, tip, state, True):
            return self.data.terminator.encode()
        return self.data.head_end.encode()

    def _placeholder(self, text: bytes, tip: int, state: LexState) -> bytes:
        word = word_before(text, tip)
        if word:
            return b"0" if word[:1].isdigit() else b"_"
        in_code = in_text(state) is None and state.comment < 0
        return (self.data.placeholder if in_code else WORD).encode()

    def _ends_statement(self, state: LexState, at_tip: bytes) -> bool:
        """Whether nothing but blocks is open once the closers at the tip are written."""
        left = len(state.stack) - len(at_tip.strip())
        return in_text(state) is None and (left <= 0 or state.stack[left - 1][0].block)

    def _closers(self, stack: tuple[Entry, ...], suffix: bytes) -> tuple[bytes, bytes]:
        key = (tuple((opener.open, opener.close, opener.block) for opener, _ in stack), suffix)
        if key not in self._known:
            if len(self._known) > 256:
                self._known.clear()
            self._known[key] = self._find_closers(stack, suffix)
        return self._known[key]

    def _find_closers(self, stack: tuple[Entry, ...], suffix: bytes) -> tuple[bytes, bytes]:
        """What to write at the tip and what after the suffix, so that everything in `stack` is closed once."""
        if stack and stack[-1][0].sort != BRACKET and not self._ends_inside(stack, suffix):
            at_tip, at_end = self._find_closers(stack[:-1], suffix)
            return stack[-1][0].close + at_tip, at_end
        marked = tuple((opener, -index - 2) for index, (opener, _) in enumerate(stack))
        lexer = Lexer(self.rules, suffix)
        left = lexer.run(LexState(stack=marked), len(suffix)).stack
        ours, dropped = {pos for _, pos in left}, {pos for _, pos in lexer.dropped}
        inner = len(marked)
        while inner and self._closes_at_tip(marked[inner - 1], ours, dropped):
            inner -= 1
        at_tip = b"".join(opener.close for opener, _ in reversed(marked[inner:]))
        at_end = b"".join(opener.close for opener, pos in reversed(left) if pos > -inner - 2)
        return at_tip, at_end

    def _closes_at_tip(self, entry: Entry, left: set[int], dropped: set[int]) -> bool:
        """Whether nothing to the right closes it; what holds statements may end far away, anything else ends here."""
        opener, pos = entry
        return pos in dropped or (pos in left and not opener.block)

    def _ends_inside(self, stack: tuple[Entry, ...], suffix: bytes) -> bool:
        """Whether the suffix closes the string or comment that the tip lies in. A quote that begins another string
        looks the same: it is known by what stands around it, or by leaving a later one open where read as the end.
        """
        opener = stack[-1][0]
        inside = opener.inside
        found = inside.search(suffix) if inside else None
        while found and found.lastgroup in ("escape", "open"):
            found = inside.search(suffix, found.end()) if inside else None
        if found is None or found.lastgroup != "close":
            return False
        if not opener.multiline or opener.open != opener.close:
            return True
        line = suffix[suffix.rfind(b"\n", 0, found.start()) + 1 : found.start()].strip()
        if line:
            return line[-1:] not in b"=([{,:"
        if suffix[found.end() :].partition(b"\n")[0].strip(b" \t\r).,;]}"):
            return False
        after = Lexer(self.rules, suffix).run(LexState(stack=stack), len(suffix))
        return in_text(after) is None


class _Buffer:
    """Holds one text at a time; both end together."""

    def __init__(self) -> None:
        self._bytes = bytearray(MOST_BYTES)
        self._parts: dict[int, memoryview] = {}
        self._end = memoryview(self._bytes)
        self._start = MOST_BYTES

    def put(self, text: bytes) -> None:
        """Replaces the text."""
        self._start = MOST_BYTES - len(text)
        self._bytes[self._start :] = text

    def part(self, offset: int) -> memoryview:
        """The text from `offset` on; one object for each offset, however often it is asked for."""
        start = min(self._start + offset, MOST_BYTES)
        if start not in self._parts:
            self._parts[start] = self._end[start:]
        return self._parts[start]


# Those in use by nobody: as many as ever parsed at once.
_idle: list[_Buffer] = []


class Parser:
    """One parser for one language; counts the bytes and the parses."""

    def __init__(self, language: tree_sitter.Language) -> None:
        import tree_sitter  # it may be missing: whoever has a Language has it

        self._parser = tree_sitter.Parser(language)
        self.parses = self.bytes_parsed = self.given_up = 0

    def parse(self, text: bytes) -> tree_sitter.Tree | None:
        """The tree of `text`; None where given up. Other threads can have the interpreter at each report."""
        self.parses += 1
        self.bytes_parsed += len(text)
        if len(text) > MOST_BYTES:
            self.given_up += 1
            return None
        buffer = _idle.pop() if _idle else _Buffer()
        buffer.put(text)
        try:
            return self._run(text, buffer)
        finally:
            _idle.append(buffer)

    def _run(self, text: bytes, buffer: _Buffer) -> tree_sitter.Tree | None:
        steps, done = 0, False

        def progress(_offset: int, _has_error: bool) -> bool:
            nonlocal steps
            steps += 1
            return steps >= MOST_STEPS

        def read(offset: int, _point: tree_sitter.Point) -> bytes | memoryview:
            # A query reads nodes once the buffer is another's: byte by byte, for those objects are never new.
            return text[offset : offset + 1] if done else buffer.part(offset)

        try:
            return self._parser.parse(read, progress_callback=progress)
        except ValueError:
            self._parser.reset()
            self.given_up += 1
            return None
        finally:
            done = True
