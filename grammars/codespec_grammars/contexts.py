"""The closed vocabulary of contexts. Knows the names and what each means; does not know how one is found."""

from __future__ import annotations

from enum import StrEnum


class Context(StrEnum):
    """What is being written at the tip of a text. Each name is also the only kind of capture a `contexts.scm` may use.

    comment      inside a comment
    docstring    inside a string or comment that documents (a docstring, `/** … */`, `///`)
    string       inside a string literal, its interpolations excepted
    import       inside an import, include, use or package statement
    signature    inside the head of a function or type: name, parameters, result
    arguments    directly inside the brackets of a call
    closing      right after a closing bracket, where further closers tend to come
    block_start  right after what opens a block (`:`, `{`, `then`), still on its line
    indent       in the white space that begins a line
    operator     right after an operator or an assignment sign
    identifier   inside a word, or right after what a member's name must follow (`.`, `::`)
    statement    anywhere else in code
    free_text    prose: Markdown paragraphs, text between tags
    unknown      no grammar for this language, so nothing can be said (and nothing is capped)
    """

    COMMENT = "comment"
    DOCSTRING = "docstring"
    STRING = "string"
    IMPORT = "import"
    SIGNATURE = "signature"
    ARGUMENTS = "arguments"
    CLOSING = "closing"
    BLOCK_START = "block_start"
    INDENT = "indent"
    OPERATOR = "operator"
    IDENTIFIER = "identifier"
    STATEMENT = "statement"
    FREE_TEXT = "free_text"
    UNKNOWN = "unknown"


TEXT_LIKE = frozenset({Context.COMMENT, Context.DOCSTRING, Context.STRING, Context.FREE_TEXT})
# These describe the last token, the others what the tip lies in.
OF_LAST_TOKEN = frozenset({Context.CLOSING, Context.BLOCK_START, Context.OPERATOR, Context.IDENTIFIER})
NAMES = frozenset(context.value for context in Context)
