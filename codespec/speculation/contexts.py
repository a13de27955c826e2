"""Where the tip of each text lies in its syntax. Begins from what the editor's language server sent, where it did, and
follows the text as it grows, by the lexer alone: a parse in a process of its own took 0.4 to 0.7 ms a round, and draft
lengths gained nothing by it. Knows texts and grammar contexts; does not know what a context is used for.
"""

from __future__ import annotations

import collections.abc
import time

from codespec_grammars import ContextTracker, find_language

from codespec.sequence import Outlook, Sequence


def follow(sequences: collections.abc.Sequence[Sequence]) -> None:
    """Advances every sequence's tracker by what was committed since it last looked, and reads the context there; costs
    next to nothing where nothing was committed. The time is added to `outlook.seconds`.

    Committed text is never taken back, so a tracker only advances. Bytes that healing holds are certain and count.
    """
    for sequence in sequences:
        outlook, known = sequence.outlook, sequence.known
        if outlook.tracker is not None and outlook.read == len(known):
            continue
        began = time.perf_counter()
        if outlook.tracker is None:
            outlook.tracker = _begin(sequence, outlook)
        outlook.tracker.advance(known[outlook.read :])
        outlook.read = len(known)
        outlook.context = outlook.tracker.context(parse=False).context.value
        outlook.seconds += time.perf_counter() - began


def _begin(sequence: Sequence, outlook: Outlook) -> ContextTracker:
    """At the cursor, which stands behind the bytes that healing holds."""
    request = sequence.request
    outlook.language = find_language(request.language, request.path) if request.language or request.path else ""
    outlook.read = len(sequence.held)
    text = sequence.context + sequence.held
    return ContextTracker(outlook.language, text, request.suffix.encode(), sent=request.cursor)
