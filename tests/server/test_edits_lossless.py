"""Edits with drafts are those without: the old lines and the prompt change the number of rounds, never an edit.

The target is a parrot that continues the daemon's own prompt with a given answer.
"""

from __future__ import annotations

from typing import Any

import pytest

from codespec.proposers.lookup import PredictionProposer, SuffixProposer
from codespec.server.dialects.codespec import read_edit
from codespec.server.wire import Fields
from codespec.text.edit_formats import edit_formats
from codespec.text.edit_prompt import EditPrompt, build_edit_prompt
from tests.parrot import CONTEXT, Parrot, parrot_engine
from tests.server.daemons import serving
from tests.text.test_edit_prompt import tokenizer

SOURCE = (
    "def area(w, height):\n    return w * height\n\n\ndef show(size):\n    width = 3\n"
    "    print(area(width, size))\n\n\nshow(4)\n"
)
BODY = {
    "path": "a.py",
    "text": SOURCE,
    "places": [2],
    "cursor": {"row": 1, "column": 4},
    "history": [{"path": "a.py", "row": 9, "old": "show(3)\n", "new": "show(4)\n"}],
}


def ask(form: str, kind: str, change: tuple[str, str], speculate: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return the edits and the statistics of an answer with a change."""
    speller, wanted = tokenizer(kind), read_edit(Fields(BODY))
    prompt = build_edit_prompt(speller, edit_formats()[form], wanted.context, 2, most=CONTEXT, budget=CONTEXT)
    assert isinstance(prompt, EditPrompt)
    assert change[0] in prompt.prediction
    text = prompt.text + prompt.prediction.replace(*change) + "```\nExplained at length.\n" * prompt.window.keeps_end
    engine = parrot_engine(Parrot(speller, text))
    engine.proposers = (PredictionProposer(), SuffixProposer())
    with serving(engine, context=CONTEXT, edit_format=form) as served:
        reply = served.post("/v1/codespec/edit", {**BODY, "speculate": speculate})
    assert reply.status == 200, reply.body
    done = reply.events[-1][1]
    return [data for name, data in reply.events if name == "edit"], done


@pytest.mark.parametrize("form", ["sweep-server", "sweep-card", "chat"])
@pytest.mark.parametrize("kind", ["gpt2", "qwen", "bytes"])
@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (("show", "show"), None),
        (("show(size)", "show(sizes)"), (4, 5)),
        (("    width = 3\n", ""), (5, 6)),
        (("def show", "def other():\n    pass\n\n\ndef show"), (4, 4)),
    ],
)
def test_drafts_change_the_rounds_and_no_edit(
    form: str, kind: str, change: tuple[str, str], rows: tuple[int, int] | None
) -> None:
    with_drafts, drafted = ask(form, kind, change, True)
    without, plain = ask(form, kind, change, False)
    assert with_drafts == without
    assert drafted["reason"] == plain["reason"] and drafted["unchanged"] == plain["unchanged"] == (rows is None)
    assert [(edit["start_row"], edit["end_row"]) for edit in without] == ([rows] if rows else [])
    assert plain["stats"]["drafted"] == 0 and drafted["stats"]["by_source"]["prediction"]["accepted"] > 0
    assert 2 * drafted["stats"]["rounds"] < plain["stats"]["rounds"] == plain["stats"]["committed"]
