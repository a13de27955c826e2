"""Texts that open something again and again and close nothing, which makes parsers and scanners go deep. Knows the
data of languages; parses nothing.
"""

from __future__ import annotations

from codespec_grammars.registry import languages

# Of many languages: each is tried in all of them.
PIECES = (
    "- ", "? ", ": ", "> ", "* ", "1. ", "# ", "<a>", "<a ", "a<", "a(", "a[", "a{", "a.", "a?", "a?b:", "a=", "a,",
    "a->", "a=>", "a:{", "!", "-", "~", "&", "not ", "'", '"', "`", "`${", "$(", "${", "#{", "{{", "f'{", 'f"{', '"#{',
    '"${', '"$(', "$((", "<<A\n", "/*", "{-", "--[[", "[[", "(*", 'r#"', "if a:\n", "if (a) ", "if a then ", "do ",
    "begin ", "case a in ", "else if ", "fn(", "function a(", "()=>", "lambda: ", "class A{", "class A\n", "def a\n",
    "namespace a{", "a\n ", "a:\n ", "[a]: ", "<?php ", "<script>", "<style>", "```\n", "|\n ", "%w(", "@a(", "#if a\n",
    "#[a(", "match a{", "switch(a){", "for(", "try{", "a:b<", "(a)", "<a<", "{a:[", "((", "[[[", "a b ", "return ",
)  # fmt: skip


def openers(language: str) -> tuple[str, ...]:
    """Pieces to repeat: those of every language, and what this one's data says that it opens."""
    data = languages()[language]
    own = [pair[0] for pair in data.brackets] + [*data.block_openers] + [opened for opened, _ in data.block_comments]
    own += [f"{rule.open}{rule.interpolation}" for rule in data.strings]
    own += [f"{word} " for word in (*data.head_words, *data.signature_words, *data.import_words)]
    return tuple(dict.fromkeys([*PIECES, *filter(None, own)]))


def growing(head: str, depth: int) -> str:
    """A head on line after line, each one column deeper."""
    return "".join(" " * level + head for level in range(depth))
