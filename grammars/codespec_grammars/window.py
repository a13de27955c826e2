"""The window of bytes around the tip that is lexed, and the part of it that is parsed, made parsable.

The window's bounds depend on the text alone, so a tracker that advanced uses the same bytes as a fresh one. `mended`
inserts a placeholder at the tip and the closers that the suffix lacks, using the lexer only; parsing happens elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left

from codespec_grammars.lexer import Lexer, LexState, in_text, word_before
from codespec_grammars.lexer_rules import BRACKET, Entry, LexerRules, Opener

# Lexed before the tip: 6 to 8 KB, starting at a line; about 200 lines of code.
BEFORE, STEP, MAX_LINES = 6144, 2048, 320
# If lines are longer than LONG_LINE on average, the window is smaller: each decision lexes the last line again.
LONG_LINE, LONG_LINES, LONG_STEP = 256, 1024, 256
# Parsed before the tip: at least NEAR bytes if a suitable line exists, never more than PARSED.
PARSED, NEAR = 1024, 192
# Parsed above that: the last HEADS lines with openers that are still open there, each of at most HEAD bytes.
HEADS, HEAD = 12, 160
# Parsed after the tip.
AFTER, LINES_AFTER = 512, 25
LONG_INDENT = 256
WORD = b"CSPEC"  # the placeholder in a text


def kept_from(length: int) -> int:
    """Return the start of the part of a prefix that later windows may need."""
    return max(0, (length - BEFORE) // STEP * STEP)


def window_start(rules: LexerRules, text: bytes, whole: bool) -> tuple[int, bool]:
    """Return the start of the window that ends with `text`, and whether a line begins there.

    The start moves in steps of STEP. It is a line that begins an item (so it isn't inside a string or comment) if there
    is one, else any line; with long lines it may be inside a line. `whole`: the text begins at the start of the file.
    """
    tip = len(text)
    start = kept_from(tip)
    while tip - start > STEP // 2 and text.count(b"\n", start, tip) > MAX_LINES:
        start += STEP // 4
    if text.count(b"\n", start, tip) * LONG_LINE < tip - start:
        start = max(start, (tip - LONG_LINES) // LONG_STEP * LONG_STEP)
    if start == 0 and whole:
        return 0, True
    item = next(filter(None, (anchor.search(text, start, tip - LONG_STEP) for anchor in rules.anchors)), None)
    newline = item.start() if item else text.find(b"\n", start, min(start + STEP, tip - LONG_STEP))
    return (newline + 1, True) if newline >= 0 else (start, False)


def parse_start(lexer: Lexer, stack: tuple[Entry, ...]) -> int | None:
    """Return the start of the part to parse, or None if no suitable line is within PARSED bytes.

    A suitable line has only entries open that are also open at the tip, and no later line is indented less. The nearest
    one that begins an item is preferred, then the least indented.
    """
    text, rules, tip = lexer.text, lexer.rules, len(lexer.text)
    opened_at, least = [pos for _, pos in stack], LONG_INDENT
    best: tuple[int, int] | None = None
    near = None
    for start, opened in reversed(lexer.lines):
        if tip - start > PARSED:
            break
        indent = _indent(text, start)
        if indent > least or indent == LONG_INDENT or text.startswith(rules.line_comments, start + indent):
            continue
        least = indent
        if opened != bisect_left(opened_at, start):
            continue
        if tip - start < NEAR:
            near = start
        elif rules.item.match(text, start):
            return start
        elif best is None or indent < best[0]:
            best = (indent, start)
    return best[1] if best else near


def heads(lexer: Lexer, stack: tuple[Entry, ...], start: int) -> bytes:
    """Return the text that reopens, before a part that begins at `start`, everything that is open there.

    It consists of the lines with the openers, or of the bare openers if those lines are long or far up.
    """
    above = [entry for entry in stack if entry[1] < start]
    pieces, index = [], 0
    while index < len(above):
        line = lexer.text.rfind(b"\n", 0, max(0, above[index][1])) + 1
        end = index + 1
        while end < len(above) and above[end][1] >= 0 and lexer.text.find(b"\n", line, above[end][1]) < 0:
            end += 1
        piece = lexer.text[line : above[end - 1][1] + len(above[end - 1][0].open)]
        at = bisect_left(lexer.lines, (line, 0))
        alone = above[index][1] >= 0 and len(piece) <= HEAD and lexer.lines[at : at + 1] == [(line, index)]
        bare = b" ".join(opener.open for opener, _ in above[index:end])
        pieces.append(piece if alone and len(above) - index <= HEADS else bare)
        index = end
    return b"".join(piece + b"\n" for piece in pieces)


def _indent(text: bytes, start: int) -> int:
    """Return the indent of a line in columns; LONG_INDENT for a blank line."""
    line = text[start : start + LONG_INDENT]
    shown = line.lstrip(b" \t")
    return LONG_INDENT if shown[:1] in (b"\n", b"\r") else len(line) - len(shown)


def suffix_window(rules: LexerRules, suffix: bytes, in_code: bool) -> bytes:
    """Return the text to parse after the tip: up to the next line that begins an item, at most LINES_AFTER lines."""
    suffix = suffix[:AFTER]
    start = 0
    for _ in range(LINES_AFTER):
        newline = suffix.find(b"\n", start)
        if newline < 0:
            return suffix if len(suffix) < AFTER else suffix[: start or LONG_STEP]
        start = newline + 1
        if in_code and rules.item.match(suffix, start):
            break
    return suffix[:start]


class LexedWindow:
    """The end of a prefix with the bytes appended to it.

    `text` is the window, which begins `start` bytes into the kept text. `checkpoint` is the lexer state at the last
    line end that `state` passed, from which lexing resumes. `seeded` are the entries open at its start. `appended`
    counts the appended bytes, `version` the changes.
    """

    def __init__(self, rules: LexerRules, prefix: bytes) -> None:
        self.rules = rules
        base = kept_from(len(prefix))
        self._kept, self._whole = prefix[base:], base == 0
        self.seeded: tuple[Entry, ...] = ()
        self.appended = self.version = 0
        self.checkpoint = LexState()
        self._begin(*window_start(rules, self._kept, self._whole))

    @property
    def text(self) -> bytes:
        """The bytes of the window up to the tip."""
        return self.lexer.text

    def begins_file(self, start: int) -> bool:
        """Return whether a position in the window is the start of the file."""
        return self._whole and self.start + start == 0

    def seed(self, outer: tuple[Entry, ...], text: tuple[Entry, ...]) -> None:
        """Restart lexing with entries open at the start of the window; without `text` if it ends in the window."""
        for entries in (outer + text, outer):
            self.seeded = entries
            self.version += 1
            self._begin(self.start, self._at_line)
            if not text or self.state().stack == self.seeded:
                break

    def append(self, data: bytes) -> None:
        """Append bytes at the tip."""
        self._kept += data
        self.appended += len(data)
        self.version += 1
        start, at_line = window_start(self.rules, self._kept, self._whole)
        if (start, at_line) != (self.start, self._at_line):
            self._begin(start, at_line)
        else:
            self.lexer.text = self._kept[start:]

    def state(self) -> LexState:
        """Return the lexer state at the tip. Lexes the last line and the bytes appended since the last checkpoint."""
        lexer = self.lexer
        last = self.checkpoint
        lexer.forget(last.pos)
        newline = lexer.text.rfind(b"\n", last.pos)
        while newline > last.pos and lexer.text.endswith((b"\\", b"\\\r"), newline - 2, newline):
            newline = lexer.text.rfind(b"\n", last.pos, newline)  # a backslash and its line end are one event
        if newline > last.pos:
            last = self.checkpoint = lexer.run(last, newline)
        return lexer.run(last, len(lexer.text))

    def _begin(self, start: int, at_line: bool) -> None:
        self.start, self._at_line = start, at_line
        self.lexer = Lexer(self.rules, self._kept[start:])
        opened = self.seeded or (self.rules.beginning if self.begins_file(0) else ())
        if at_line and not (opened and opened[-1][0].sort != BRACKET):
            self.lexer.lines.append((0, len(opened)))
        self.checkpoint = LexState(stack=opened)


def repaired(lexer: Lexer, start: int) -> bytes:
    """Return the text from `start` to the tip, with a closer inserted wherever one was missing."""
    pieces, last = [], start
    for pos, close in lexer.repairs:
        if pos >= start and close:
            pieces += [lexer.text[last:pos], close, b"\n" if lexer.text[pos - 1 : pos] == b"\n" else b""]
            last = pos
    return b"".join([*pieces, lexer.text[last:]])


def mended(rules: LexerRules, text: bytes, state: LexState, suffix: bytes) -> tuple[bytes, bytes]:
    """Return what to put after the text up to a tip: a placeholder, and the suffix with the missing closers.

    `suffix` is already cut to its window.
    """
    at_tip, at_end = _find_closers(rules, state.stack, suffix)
    in_code = in_text(state) is None and state.comment < 0
    placeholder = rules.data.placeholder.encode() if in_code else WORD
    if word := word_before(text):
        placeholder = b"0" if word[:1].isdigit() else b"_"
    line = suffix.partition(b"\n")[0]
    if state.comment >= 0:  # closers would be part of the line comment, so insert them after it
        return placeholder, line + (b"\n" + at_tip if at_tip else b"") + suffix[len(line) :] + at_end
    left = len(state.stack) - len(at_tip.strip())
    only_blocks = in_text(state) is None and (left <= 0 or state.stack[left - 1][0].block)  # open after the closers
    if not line.strip() and only_blocks:
        at_tip += rules.data.terminator.encode()
    return placeholder, at_tip + suffix + at_end


def _find_closers(rules: LexerRules, stack: tuple[Entry, ...], suffix: bytes) -> tuple[bytes, bytes]:
    """Return the closers for the tip and those for the end of the suffix, so that each entry is closed once.

    An entry is closed at the tip if the suffix leaves it open, unless it is a block, which may end beyond the window.
    """
    if stack and stack[-1][0].sort != BRACKET and not _ends_inside(stack[-1][0], suffix):
        at_tip, at_end = _find_closers(rules, stack[:-1], suffix)
        return stack[-1][0].close + at_tip, at_end
    marked = tuple((opener, -index - 2) for index, (opener, _) in enumerate(stack))
    lexer = Lexer(rules, suffix)
    left = lexer.run(LexState(stack=marked), len(suffix)).stack
    dropped, unclosed = {pos for _, pos in lexer.dropped}, {pos for opener, pos in left if not opener.block}
    inner = len(marked)
    while inner and marked[inner - 1][1] in dropped | unclosed:
        inner -= 1
    at_tip = b"".join(opener.close for opener, _ in reversed(marked[inner:]))
    at_end = b"".join(opener.close for opener, pos in reversed(left) if pos > -inner - 2)
    return at_tip, at_end


def _ends_inside(opener: Opener, suffix: bytes) -> bool:
    """Return whether the suffix closes the string or comment around the tip.

    A quote could also begin another string. The text around it tells them apart.
    """
    events = opener.inside.finditer(suffix) if opener.inside else iter(())
    event = next((event for event in events if event.lastgroup not in ("escape", "open")), None)
    if event is None or event.lastgroup != "close":
        return False
    if not opener.multiline or opener.open != opener.close:
        return True
    line = suffix[suffix.rfind(b"\n", 0, event.start()) + 1 : event.start()].strip()
    if line:
        return line[-1:] not in b"=([{,:"
    return not suffix[event.end() :].partition(b"\n")[0].strip(b" \t\r).,;]}")
