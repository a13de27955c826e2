"""Find the identifiers of a line of code, in any of the six languages of the places."""

from __future__ import annotations

import re

_STRING = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`""")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
KEYWORDS = frozenset(  # of the six languages
    _IDENTIFIER.findall(
        """
        and as assert async await auto bool boolean break case catch chan char class const continue def default
        defer del delete do double elif else enum except export extends extern False final finally float fn for
        from func function go goto if impl implements import in instanceof int interface is lambda let long loop
        map match mod move mut namespace new nil None nonlocal not null or override package pass private protected
        pub public raise range ref return select short signed sizeof static str string struct super switch
        template this throw throws trait True try type typedef typename typeof undefined union unsafe unsigned use
        using var virtual void volatile where while with yield self true false
        """
    )
)


def identifiers(line: str) -> list[str]:
    """Return the identifiers of a line in order, without keywords and texts."""
    return [word for word in _IDENTIFIER.findall(_STRING.sub('""', line)) if word not in KEYWORDS]
