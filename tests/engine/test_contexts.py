"""The engine parses nothing: it reads the cursor that a language server sent, or lexes."""

from __future__ import annotations

import pytest
from codespec_grammars import Context, Cursor, workers

from codespec.api.types import CompletionRequest
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

PREFIX, SPOKEN = "def area(width, height):\n    ", "return width * height\n\n\nx = 1\n"
CURSORS = {
    "as the lexer finds it": Cursor(Context.INDENT, "", 4),
    "as only a tree finds it": Cursor(Context.ARGUMENTS, "(", 4),
    "in a text from above": Cursor(Context.DOCSTRING, "", 4),
    "not sent": None,
}


@pytest.mark.parametrize("cursor", CURSORS.values(), ids=CURSORS)
@pytest.mark.parametrize("caps", [None, {"statement": 4}], ids=["plain", "capped by syntax"])
def test_a_completion_looks_up_no_context(
    cursor: Cursor | None, caps: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = []
    monkeypatch.setattr(workers, "look_up", lambda *asked: looked_up.append(asked))
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Prompter(parrot, (4,)))
    engine.caps = caps or {}
    request = CompletionRequest(prefix=PREFIX, suffix="\n", language="python", shape="auto", cursor=cursor)
    (done,) = engine.complete([request])
    assert done.text and done.stats.rounds > 1
    assert not looked_up
