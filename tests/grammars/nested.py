"""Texts that open constructs repeatedly and close none, which drives parsers and scanners into deep nesting."""

from __future__ import annotations

from codespec_grammars.language import languages

# From many languages; each piece is tried in every language.
PIECES = (
    "- ", "? ", ": ", "> ", "* ", "1. ", "# ", "<a>", "<a ", "a<", "a(", "a[", "a{", "a.", "a?", "a?b:", "a=", "a,",
    "a->", "a=>", "a:{", "!", "-", "~", "&", "not ", "'", '"', "`", "`${", "$(", "${", "#{", "{{", "f'{", 'f"{', '"#{',
    '"${', '"$(', "$((", "<<A\n", "/*", "{-", "--[[", "[[", "(*", 'r#"', "if a:\n", "if (a) ", "if a then ", "do ",
    "begin ", "case a in ", "else if ", "fn(", "function a(", "()=>", "lambda: ", "class A{", "class A\n", "def a\n",
    "namespace a{", "a\n ", "a:\n ", "[a]: ", "<?php ", "<script>", "<style>", "```\n", "|\n ", "%w(", "@a(", "#if a\n",
    "#[a(", "match a{", "switch(a){", "for(", "try{", "a:b<", "(a)", "<a<", "{a:[", "((", "[[[", "a b ", "return ",
)  # fmt: skip


def openers(language: str) -> tuple[str, ...]:
    """Return pieces to repeat: those of all languages, and the openers in this language's data."""
    data = languages()[language]
    own = [pair[0] for pair in data.brackets] + [*data.block_openers] + [opened for opened, _ in data.block_comments]
    own += [f"{rule.open}{rule.interpolation}" for rule in data.strings]
    own += [f"{word} " for word in (*data.head_words, *data.signature_words, *data.import_words)]
    return tuple(dict.fromkeys([*PIECES, *filter(None, own)]))


def growing(head: str, depth: int) -> str:
    """Return `head` on `depth` lines, each one column deeper."""
    return "".join(" " * level + head for level in range(depth))
