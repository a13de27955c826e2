"""Load a language's grammar, make the text around a cursor parsable, and look up the contexts captured at the cursor.

tree-sitter and a grammar's wheel are imported on first use; both may be missing. A placeholder at the cursor and the
missing closing delimiters make the text parsable. `WindowService` runs in a separate process and never parses
incrementally, because incremental parsing of broken code gives a different tree than a fresh parse.
"""

from __future__ import annotations

import importlib
import logging
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codespec_grammars.language import GrammarDataError, find_language, languages
from codespec_grammars.lexer import LONG_STEP, Lexer, LexState, in_text, word_before
from codespec_grammars.lexer_rules import BRACKET, Entry, LexerRules, Opener, compile_rules

if TYPE_CHECKING:
    import tree_sitter

# tree-sitter ignores unknown predicates, so a pattern with a misspelled predicate would capture too much.
PREDICATES = re.compile(r"(?:not-)?(?:any-)?(?:eq|match)\?|(?:not-)?any-of\?|set!|is(?:-not)?\?")
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|;[^\n]*|@([\w.-]+)|#([\w.-]+[?!]?)')
_INHERITS = re.compile(r";+\s*inherits:\s*([\w, -]+)\s*\n")
_ROW = re.compile(r"row (\d+)")
MATCH_LIMIT = 256
# Progress callbacks before a parse is given up. The parser calls back every hundred steps, which take 13 microseconds
# in clean code and up to 200 in garbage. A KB of dense clean code takes 17 callbacks.
MAX_STEPS = 32
MAX_BYTES = 8192
PARSED, NEAR = 1024, 192  # bytes before the cursor that are parsed: at most, and at least if a suitable line exists
HEADS, HEAD = 12, 160  # lines with openers that are put before the parsed text; bytes of such a line
AFTER, LINES_AFTER = 512, 25  # bytes and lines after the cursor that are parsed
LONG_INDENT = 256
WORD = b"CSPEC"  # the placeholder in a string or comment
log = logging.getLogger("codespec_grammars")


class Context(StrEnum):
    """The syntactic context at a cursor. The values are the names of captures in `contexts.scm`."""

    COMMENT = "comment"  # inside a comment
    DOCSTRING = "docstring"  # inside a documentation string or comment (a docstring, `/** … */`, `///`)
    STRING = "string"  # inside a string literal, except its interpolations
    IMPORT = "import"  # inside an import, include, use or package statement
    SIGNATURE = "signature"  # inside the head of a function or type: name, parameters, result
    ARGUMENTS = "arguments"  # directly inside the brackets of a call
    CLOSING = "closing"  # right after a closing bracket, where further closers are likely
    BLOCK_START = "block_start"  # right after a block opener (`:`, `{`, `then`), on the same line
    INDENT = "indent"  # in the white space at the start of a line
    OPERATOR = "operator"  # right after an operator or an assignment sign
    IDENTIFIER = "identifier"  # inside a word, or right after a token that a member's name follows (`.`, `::`)
    STATEMENT = "statement"  # anywhere else in code
    FREE_TEXT = "free_text"  # prose: Markdown paragraphs, text between tags
    UNKNOWN = "unknown"  # no grammar for this language (the draft length is not capped)


TEXT_LIKE = frozenset({Context.COMMENT, Context.DOCSTRING, Context.STRING, Context.FREE_TEXT})
# These contexts describe the last token; all others describe the construct around the cursor.
OF_LAST_TOKEN = frozenset({Context.CLOSING, Context.BLOCK_START, Context.OPERATOR, Context.IDENTIFIER})


@dataclass(frozen=True, slots=True)
class Grammar:
    """An installed grammar. If two patterns of `contexts` capture the same node, the later pattern wins."""

    language: tree_sitter.Language
    contexts: tree_sitter.Query
    rules: LexerRules


@cache
def load_grammar(language: str) -> Grammar | None:
    """Load the grammar of a language, given the language's name or editor id.

    Returns None if the language is unknown, or if tree-sitter or the grammar's wheel is not installed. Raises
    GrammarDataError only if this package's data is invalid.
    """
    name = find_language(language)
    if not name:
        return None
    data = languages()[name]
    try:
        import tree_sitter

        module = importlib.import_module(data.module)
    except ImportError:
        return None
    try:
        grammar = tree_sitter.Language(getattr(module, data.function)())
    except ValueError as error:
        log.warning("The installed grammar of %s does not fit this tree-sitter (%s): upgrade both.", name, error)
        return None
    return Grammar(grammar, compile_contexts(grammar, data.folder), compile_rules(data))


def compile_contexts(language: tree_sitter.Language, folder: Path) -> tree_sitter.Query:
    """Compile `folder/contexts.scm` and the files that it inherits. Raises GrammarDataError if a file is invalid."""
    sources = contexts_of(folder)
    for path, source in sources:
        for token in _TOKEN.finditer(source):
            line = source.count("\n", 0, token.start()) + 1
            if token[1] and token[1] not in set(Context):
                raise GrammarDataError(f"@{token[1]} is not a context: use one of {', '.join(Context)}", path, line)
            if token[2] and not PREDICATES.fullmatch(token[2]):
                raise GrammarDataError(f"unknown predicate #{token[2]}: use one such as #eq? or #match?", path, line)
        _compile(language, path, source)  # each file by itself first, so that the row of an error is that of the file
    return _compile(language, sources[-1][0], "\n".join(source for _, source in sources))


def contexts_of(folder: Path, above: tuple[Path, ...] = ()) -> list[tuple[Path, str]]:
    """Return the paths and sources of a folder's query files, first those that line 1 lists after `; inherits:`."""
    path = folder / "contexts.scm"
    source = path.read_text(encoding="utf-8")
    if path in above:
        raise GrammarDataError("the file inherits from itself: name other languages after `inherits:`", path, 1)
    header = _INHERITS.match(source)
    sources: list[tuple[Path, str]] = []
    for name in header[1].replace(" ", "").split(",") if header else []:
        if not (folder.parent / name / path.name).is_file():
            raise GrammarDataError(f"{name!r} has no {path.name} to inherit: name another language", path, 1)
        sources += [item for item in contexts_of(folder.parent / name, (*above, path)) if item not in sources]
    return [*sources, (path, source)]


def _compile(language: tree_sitter.Language, path: Path, source: str) -> tree_sitter.Query:
    import tree_sitter

    try:
        return tree_sitter.Query(language, source)
    except tree_sitter.QueryError as error:
        row = _ROW.search(str(error))
        raise GrammarDataError(str(error), path, int(row[1]) + 1 if row else 1) from error


def parse_start(lexer: Lexer, stack: tuple[Entry, ...]) -> int | None:
    """Return the start of the text to parse, or None if no line of the last PARSED bytes is suitable.

    A line is suitable if the brackets open at its start are still open at the cursor and no later line is indented
    less. The nearest suitable top-level line is preferred, then the least indented line.
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
    """Return text that opens the brackets and strings open at `start`, to put before the text from `start` on."""
    # Each line is a source line that contains an opener, or the opener alone if that line is long or far up.
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
    """Return the indent of a line in characters, or LONG_INDENT for a blank line."""
    line = text[start : start + LONG_INDENT]
    shown = line.lstrip(b" \t")
    return LONG_INDENT if shown[:1] in (b"\n", b"\r") else len(line) - len(shown)


def suffix_window(rules: LexerRules, suffix: bytes, in_code: bool) -> bytes:
    """Return the text to parse after the cursor: at most LINES_AFTER lines, up to the next top-level line."""
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


def repaired(lexer: Lexer, start: int) -> bytes:
    """Return the text from `start` to the cursor, with the missing closing delimiters inserted."""
    pieces, last = [], start
    for pos, close in lexer.repairs:
        if pos >= start and close:
            pieces += [lexer.text[last:pos], close, b"\n" if lexer.text[pos - 1 : pos] == b"\n" else b""]
            last = pos
    return b"".join([*pieces, lexer.text[last:]])


def mended(rules: LexerRules, text: bytes, state: LexState, suffix: bytes) -> tuple[bytes, bytes]:
    """Return a placeholder to insert at the cursor, and the suffix completed with the missing closing delimiters."""
    at_tip, at_end = _find_closers(rules, state.stack, suffix)
    in_code = in_text(state) is None and state.comment < 0
    placeholder = rules.data.placeholder.encode() if in_code else WORD
    if word := word_before(text):
        placeholder = b"0" if word[:1].isdigit() else b"_"
    line = suffix.partition(b"\n")[0]
    if state.comment >= 0:  # the closers go after the line comment
        return placeholder, line + (b"\n" + at_tip if at_tip else b"") + suffix[len(line) :] + at_end
    left = len(state.stack) - len(at_tip.strip())
    only_blocks = in_text(state) is None and (left <= 0 or state.stack[left - 1][0].block)  # open after the closers
    if not line.strip() and only_blocks:
        at_tip += rules.data.terminator.encode()
    return placeholder, at_tip + suffix + at_end


def _find_closers(rules: LexerRules, stack: tuple[Entry, ...], suffix: bytes) -> tuple[bytes, bytes]:
    """Return the closing delimiters to insert at the cursor, and those to append to the suffix."""
    # A bracket or string that the suffix leaves open is closed at the cursor, but a block may end after the suffix.
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
    """Return whether the suffix closes the string or comment at the cursor, rather than opening another one."""
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


@dataclass(frozen=True, slots=True)
class Captures:
    """The captures at a cursor."""

    inside: Context | None = None  # of the innermost captured node around the cursor
    token: Context | None = None  # of the last token before the cursor
    clean: bool = False  # whether there is no syntax error between the cursor and the node of `inside`
    errors: bool = True  # whether the tree has a syntax error


NOTHING = Captures()


def look_up(tree: tree_sitter.Tree, contexts: tree_sitter.Query, tip: int, width: int, left: int) -> Captures:
    """Return the captures around the placeholder of `width` bytes at offset `tip`; the last token ends at `left`."""
    import tree_sitter

    root = tree.root_node
    cursor = tree_sitter.QueryCursor(contexts, match_limit=MATCH_LIMIT)
    cursor.set_byte_range(max(0, left - 1), tip + width)
    inside: tuple[int, int, Context] | None = None
    token: tuple[int, Context] | None = None
    for pattern, captures in cursor.matches(root):
        for name, node in ((name, node) for name, nodes in captures.items() for node in nodes):
            start, end = node.start_byte, node.end_byte
            if start <= tip and end >= tip + width:
                if inside is None or (end - start, -pattern) < inside[:2]:
                    inside = (end - start, -pattern, Context(name))
            # At the end of a line, the node at the cursor is often an outer block, so the last token counts too.
            elif start < left == end and name in OF_LAST_TOKEN and (token is None or pattern >= token[0]):
                token = (pattern, Context(name))
    around = nodes_around(root, tip, tip + width) if root.has_error else ()
    errors = [node.end_byte - node.start_byte for node in around if node.is_error]
    clean = not errors or (inside is not None and inside[0] < errors[-1])
    return Captures(inside[2] if inside else None, token[1] if token else None, clean, root.has_error)


def nodes_around(root: tree_sitter.Node, start: int, end: int) -> Iterator[tree_sitter.Node]:
    """Yield the nodes that contain a range of bytes, outermost first, in one descent from the root."""
    cursor = root.walk()
    node: tree_sitter.Node | None = root
    while node is not None and node.start_byte <= start and node.end_byte >= end:
        yield node
        node = cursor.node if cursor.goto_first_child_for_byte(start) is not None else None


class WindowService:
    """A service that looks up the captures at a cursor in texts of one language."""

    SECONDS = 0.1  # CPU time limit, for a parse without progress callbacks; clean code takes 1 ms
    MEMORY = 256 << 20  # bytes

    def __init__(self, language: str) -> None:
        grammar = load_grammar(language)
        assert grammar is not None
        self._parser, self._contexts = WindowParser(grammar.language), grammar.contexts

    def answer(self, request: tuple[str, int, int, int]) -> tuple[Any, ...] | None:
        """Return the fields of `Captures`, or None if the parser gave up."""
        text, tip, width, left = request
        tree = self._parser.parse(text.encode())
        return astuple(look_up(tree, self._contexts, tip, width, left)) if tree is not None else None


class WindowParser:
    """A parser for one language. A tree is valid only until the next text is parsed."""

    # py-tree-sitter (0.25, 0.26) never frees the objects that a read callback returns. To limit the leak, each text is
    # copied to the end of a single buffer, and the callback returns the same view object for the same position.

    def __init__(self, language: tree_sitter.Language) -> None:
        import tree_sitter

        self._parser = tree_sitter.Parser(language)
        self._buffer = memoryview(bytearray(MAX_BYTES))
        self._views: dict[int, memoryview] = {}

    def parse(self, text: bytes) -> tree_sitter.Tree | None:
        """Return the tree of `text`, or None if the text is too long or parsing it takes too many steps."""
        if len(text) > MAX_BYTES:
            return None
        base = MAX_BYTES - len(text)
        self._buffer[base:] = text
        steps, done = 0, False

        def progress(_offset: int, _has_error: bool) -> bool:
            nonlocal steps
            steps += 1
            return steps >= MAX_STEPS

        def read(offset: int, _point: tree_sitter.Point) -> bytes | memoryview:
            if done:  # a query reads single bytes, whose objects Python caches
                return text[offset : offset + 1]
            start = min(base + offset, MAX_BYTES)
            return self._views.get(start) or self._views.setdefault(start, self._buffer[start:])

        try:
            return self._parser.parse(read, progress_callback=progress)
        except ValueError:
            self._parser.reset()
            return None
        finally:
            done = True
