"""Notebook changes in the order in which some clients send them."""

from __future__ import annotations

from typing import Any

from tests.lsp.conversation import Editor, run
from tests.lsp.fake_daemon import talking

BOOK = "file:///n.ipynb"


def cell(name: str, text: str) -> dict[str, Any]:
    return {"uri": f"vscode-notebook-cell:/n.ipynb#{name}", "languageId": "python", "version": 1, "text": text}


def splice(client: Editor, start: int, count: int, *names: str) -> None:
    cells = [{"kind": 2, "document": cell(name, "")["uri"]} for name in names]
    change = {"cells": {"structure": {"array": {"start": start, "deleteCount": count, "cells": cells}}}}
    client.notify("notebookDocument/didChange", {"notebookDocument": {"uri": BOOK, "version": 2}, "change": change})


def test_a_cell_that_is_inserted_at_its_new_place_before_it_is_removed_keeps_its_context() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            cells = [cell("A", "x = "), cell("B", "b = 1"), cell("C", "c = 2")]
            book = {"uri": BOOK, "version": 1, "cells": [{"kind": 2, "document": each["uri"]} for each in cells]}
            client.notify("notebookDocument/didOpen", {"notebookDocument": book, "cellTextDocuments": cells})
            splice(client, 3, 0, "A")
            splice(client, 0, 1)
            assert await client.texts(0, 4, uri=cells[0]["uri"]) == ["x = 1"]
            assert fake.asked[-1].body["prefix"] == "b = 1\nc = 2\nx = "

    run(scenario())
