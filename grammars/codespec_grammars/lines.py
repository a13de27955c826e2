"""What a finished line says about the statement it belongs to. Knows lines and a language's markers; knows no lexer
states.
"""

from __future__ import annotations

import re

from codespec_grammars.lexer_rules import COMMENT, LexerRules

# Decorators, annotations and the like, alone on their line.
_ATTRIBUTE = re.compile(rb"(?:@[\w.:]+[ \t]*(?:\(.*)?|#!?\[.*|\[[\w.]+(?:\(.*)?\]|template[ \t]*<.*>)[ \t]*$")
_DANGLING = re.compile(rb"(?:\+|&&|\|\||=|\\|\b(?:and|or|not))[ \t\r]*$")
_MAY_GO_ON = re.compile(rb"[ \t]*(?:if|do|\})")


def introduces(line: bytes, rules: LexerRules) -> bool:
    """Whether the line only says something about the statement after it: a comment, a decorator."""
    line = line.strip()
    comments = (*rules.line_comments, *(opener.open for opener in rules.openers.values() if opener.sort == COMMENT))
    return line.startswith(comments) or _ATTRIBUTE.match(line) is not None


def dangles(line: bytes) -> bool:
    """Whether the line ends in something that must be followed by more, however deep the next line is."""
    return _DANGLING.search(line) is not None


def is_whole(line: bytes, rules: LexerRules) -> bool:
    """Whether a statement of this one line can't go on below, if nothing is open at its end. Said only where it is
    sure: other lines show it by what follows."""
    if not line.strip() or dangles(line) or introduces(line, rules):
        return False
    if rules.heads is not None:
        return rules.heads.match(line) is None
    return line.rstrip().endswith(b";") and _MAY_GO_ON.match(line) is None
