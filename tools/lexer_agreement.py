"""Compare the lexer with tree-sitter: is the first character of a line in code, in a string or in a comment?

    python -m tools.lexer_agreement FOLDER... [--files 200] [--seed 1] [--out docs/lexer_agreement.json]

A wrong answer makes the code below it a string, so that completions end after one line. Files that a grammar parses
with errors are left out, as are blank lines. Each disagreement is listed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tree_sitter
from codespec_grammars.grammar import Grammar, load_grammar
from codespec_grammars.language import find_language, language_names
from codespec_grammars.lexer import Lexer, LexState, in_text
from codespec_grammars.lexer_rules import COMMENT, Opener

MAX_BYTES = 100_000
MAX_LISTED = 200  # disagreements of one language
_LINE = re.compile(rb"^[ \t\r\f\v]*([^\s])", re.M)
_COMMENTS = re.compile(r"(?:line_|block_|doc_|html_|js_|multiline_)?comment|shebang|hash_bang_line|uninterpreted")
_STRINGS = re.compile(
    r"(?!concatenated|chained)(?:\w+_)?(?:string|str)(?:_literal|_scalar|_expression|_array)?|symbol_array|delimited_symbol|subshell"
    r"|char(?:acter)?_literal|rune_literal|regex(?:_literal)?|regex_pattern|heredoc(?:_body|_end|_content)?|nowdoc"
    r"|nowdoc_body|quoted_attribute_value|double_quote_scalar|single_quote_scalar|block_scalar"
    r"|block_text|raw_text|text|quasi|template_string"
)
_CODE = re.compile(
    r"format_expression|(?!text_)\w*interpolation|template_substitution|\w*expansion|command_substitution|php_tag"
)
_BODIES = re.compile(r"raw_text|heredoc(?:_body|_end|_content)?|nowdoc|nowdoc_body|block_scalar|text")
_NOT_LITERALS = {  # types whose names say more than they are
    "json": {"string"},
    "tsx": {"jsx_text"},
    "javascript": {"jsx_text"},
    "html": {"text"},
    "bash": {"expansion", "subshell", "simple_expansion"},
    "yaml": {"string_scalar"},
}


@dataclass
class Agreement:
    """The result for one language."""

    files: int = 0
    left_out: int = 0
    lines: int = 0
    disagreements: list[str] = field(default_factory=list)
    count: int = 0


def by_lexer(grammar: Grammar, text: bytes, places: list[int]) -> list[str]:
    """Return the lexer's answer at each place, in ascending order; "" where the text closes a literal."""
    lexer, state, answers = Lexer(grammar.rules, text), LexState(stack=grammar.rules.beginning), []
    for place in places:
        state = lexer.run(state, text.rfind(b"\n", 0, place) + 1)  # rules that look at a line see it from its start
        opener = in_text(lexer.run(state, place))
        answer = "code" if opener is None else "comment" if opener.sort == COMMENT else "string"
        answers.append("" if opener and closes(opener, text, place) else answer)
    return answers


def closes(opener: Opener, text: bytes, place: int) -> bool:
    """Return whether the first token at a place closes the literal around it. Grammars differ on that token."""
    assert opener.inside is not None
    found = (opener.inside.match(text, at) for at in (place, text.rfind(b"\n", 0, place) + 1))
    return any(match is not None and match.lastgroup in ("close", "leave") for match in found)


def by_tree(grammar: Grammar, tree: tree_sitter.Tree, places: list[int]) -> list[str]:
    """Return the tree's answer at each place."""
    answers = ["code"] * len(places)
    for start, end, kind in literals(tree.root_node, _NOT_LITERALS.get(grammar.rules.data.name, set())):
        for index in range(bisect_right(places, start), len(places)):
            if places[index] >= end:
                break
            answers[index] = kind
    return answers


def literals(root: tree_sitter.Node, besides: set[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the literals and comments, outer before inner, and the code inside strings."""
    cursor = root.walk()
    while True:
        node, inner = cursor.node, True
        assert node is not None
        several_lines = node.start_point.row != node.end_point.row
        if node.is_named and (several_lines or _BODIES.fullmatch(node.type)):
            if node.type not in besides:
                start = node.start_byte - bool(_BODIES.fullmatch(node.type))
                if _COMMENTS.fullmatch(node.type):
                    yield start, node.end_byte, "comment"
                    inner = False
                elif _CODE.fullmatch(node.type):
                    yield start, node.end_byte, "code"
                elif _STRINGS.fullmatch(node.type):
                    yield start, node.end_byte, "string"
        else:
            inner = several_lines
        if inner and cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def compare(grammar: Grammar, name: str, text: bytes, result: Agreement) -> None:
    """Add the lines of one file to a language's result."""
    tree = tree_sitter.Parser(grammar.language).parse(text)
    if tree.root_node.has_error:
        result.left_out += 1
        return
    places = [line.start(1) for line in _LINE.finditer(text) if line.start(1)]
    result.files += 1
    result.lines += len(places)
    for place, ours, theirs in zip(
        places, by_lexer(grammar, text, places), by_tree(grammar, tree, places), strict=True
    ):
        if ours and ours != theirs:
            result.count += 1
            if len(result.disagreements) < MAX_LISTED:
                row = text.count(b"\n", 0, place) + 1
                result.disagreements.append(f"{name}:{row}: lexer {ours}, tree {theirs}")


def sample(folders: list[Path], files: int, seed: int) -> dict[str, list[tuple[str, Path]]]:
    """Return at most `files` files of each language, with their names in their folder."""
    found: dict[str, list[tuple[str, Path]]] = {name: [] for name in language_names()}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            language = find_language("", path.name)
            if language and path.is_file() and not path.is_symlink() and 200 < path.stat().st_size <= MAX_BYTES:
                found[language].append((str(path.relative_to(folder)), path))
    chance = random.Random(seed)
    return {name: sorted(chance.sample(each, min(files, len(each)))) for name, each in found.items()}


def main() -> None:
    """Print a table, and write the figures if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--language", nargs="*")
    parser.add_argument("--packages", default="", help="the source of the folders, for the report")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    for language, paths in sample(arguments.folders, arguments.files, arguments.seed).items():
        grammar, result = load_grammar(language), Agreement()
        if grammar is None or (arguments.language and language not in arguments.language):
            continue
        for name, path in paths:
            compare(grammar, name, path.read_bytes(), result)
        share = result.count / max(1, result.lines)
        print(f"{language:12} {result.files:5} files {result.lines:8} lines {result.count:6} differ {share:8.3%}")
        report[language] = {
            "files": result.files,
            "left_out_with_errors": result.left_out,
            "lines": result.lines,
            "differ": result.count,
            "each": result.disagreements,
        }
    if arguments.out:
        command = f"python -m tools.lexer_agreement FOLDER... --files {arguments.files} --seed {arguments.seed}"
        text = json.dumps({"command": command, "packages": arguments.packages, "languages": report}, indent=1)
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
