"""Make the text around a tip parsable: insert a placeholder and the closers that the suffix lacks.

Uses the lexer only; parsing happens elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec_grammars.language import Language
from codespec_grammars.lexer import Entry, Lexer, LexState, in_text
from codespec_grammars.lexer_rules import BRACKET, LexerRules
from codespec_grammars.statement import begins_with, word_before

WORD = "CSPEC"


@dataclass(frozen=True, slots=True)
class Mended:
    """The text to parse after the tip: the placeholder, and `rest` with the suffix and the added closers."""

    placeholder: bytes
    rest: bytes


def repaired(lexer: Lexer, start: int, tip: int) -> bytes:
    """Return the text from `start` to `tip`, with a closer inserted wherever one was missing."""
    pieces, last = [], start
    for pos, close in lexer.repairs:
        if pos < start or not close:
            continue
        at_line = lexer.text[pos - 1 : pos] == b"\n"
        pieces += [lexer.text[last:pos], close, b"\n" if at_line else b""]
        last = pos
    return b"".join([*pieces, lexer.text[last:tip]])


class Mender:
    """Mends the text around a tip. The closers depend only on the open entries and the suffix, and are cached."""

    def __init__(self, data: Language, rules: LexerRules) -> None:
        self.data, self.rules = data, rules
        self._known: dict[tuple[tuple[tuple[bytes, bytes, bool], ...], bytes], tuple[bytes, bytes]] = {}

    def mend(self, text: bytes, tip: int, state: LexState, suffix: bytes) -> Mended:
        """Return the text to put after the tip. `suffix` is already cut to its window."""
        at_tip, at_end = self._closers(state.stack, suffix)
        placeholder = self._placeholder(text, tip, state)
        end = suffix.find(b"\n")
        line = suffix if end < 0 else suffix[:end]
        if state.comment >= 0:  # closers would be part of the line comment, so insert them after it
            return Mended(placeholder, line + (b"\n" + at_tip if at_tip else b"") + suffix[len(line) :] + at_end)
        if not line.strip() and self._ends_statement(state, at_tip):
            at_tip += self._end(text, tip, state)
        return Mended(placeholder, at_tip + suffix + at_end)

    def _end(self, text: bytes, tip: int, state: LexState) -> bytes:
        """Return the text that ends the statement at the tip: the end of its head, or the terminator."""
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
        """Return whether only blocks are still open after the closers at the tip."""
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
        """Return the closers for the tip and those for the end of the suffix, so that each entry is closed once."""
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
        """Return whether the entry has to be closed at the tip.

        It does if the suffix leaves it open, except for a block, which may end beyond the window.
        """
        opener, pos = entry
        return pos in dropped or (pos in left and not opener.block)

    def _ends_inside(self, stack: tuple[Entry, ...], suffix: bytes) -> bool:
        """Return whether the suffix closes the string or comment around the tip.

        A quote could also begin another string. The text around it tells them apart; otherwise it counts as a closer
        only if that leaves no later string open.
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
