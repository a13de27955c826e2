"""What the tree says about the tip. Knows the query's captures, the placeholder and error nodes; knows no lexer."""

from __future__ import annotations

from dataclasses import dataclass

import tree_sitter

from codespec_grammars.contexts import OF_LAST_TOKEN, Context
from codespec_grammars.queries import ContextQuery

MATCH_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Found:
    """`inside` is the innermost captured node around the tip, `token` the one that the last token before it is, `ended`
    the widest one that ends there. `clean` says that no error lies between the tip and `inside`, `errors`
    that there is one somewhere.
    """

    inside: Context | None = None
    token: Context | None = None
    ended: Context | None = None
    clean: bool = False
    errors: bool = True


NOTHING = Found()


def look_up(tree: tree_sitter.Tree, contexts: ContextQuery, tip: int, width: int, left: int) -> Found:
    """`tip` and `width` are the placeholder's place in the text, `left` is the end of the last token before it.

    Left-biased: at a line's end the node at the tip itself is some outer block, or the token after it.
    """
    root = tree.root_node
    cursor = tree_sitter.QueryCursor(contexts.query, match_limit=MATCH_LIMIT)
    cursor.set_byte_range(max(0, left - 1), tip + width)
    inside: tuple[int, int, int] | None = None
    around: Context | None = None
    token: tuple[int, Context] | None = None
    ended: Context | None = None
    error = _error_around(root, tip, width)
    for pattern, captures in cursor.matches(root):
        for name, nodes in captures.items():
            for node in nodes:
                start, end = node.start_byte, node.end_byte
                if start <= tip and end >= tip + width:
                    key = (end - start, -pattern, 0)
                    if inside is None or key < inside:
                        inside, around = key, Context(name)
                elif end == left and start < left:
                    context = Context(name)
                    if context not in OF_LAST_TOKEN:
                        ended = context
                    elif token is None or pattern >= token[0]:
                        token = (pattern, context)
    clean = error is None or (inside is not None and inside[0] < error)
    return Found(around, token[1] if token else None, ended, clean, root.has_error)


def _error_around(root: tree_sitter.Node, tip: int, width: int) -> int | None:
    """The size of the smallest error node around the placeholder; None where there is none."""
    if not root.has_error:
        return None
    node = root.descendant_for_byte_range(tip, tip + width)
    while node is not None:
        if node.is_error:
            return node.end_byte - node.start_byte
        node = node.parent
    return None
