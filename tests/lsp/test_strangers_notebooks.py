"""Notebook changes in the order in which some clients send them."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest
from codespec_lsp.buffer import Buffer
from codespec_lsp.documents import Document, code_of, is_magic, notebook_of

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


def open_book(client: Editor, *cells: dict[str, Any], uri: str = BOOK, kinds: tuple[int, ...] = ()) -> None:
    listed = [{"kind": kind, "document": each["uri"]} for kind, each in zip_longest(kinds, cells, fillvalue=2)]
    book = {"uri": uri, "version": 1, "cells": listed}
    client.notify("notebookDocument/didOpen", {"notebookDocument": book, "cellTextDocuments": list(cells)})


def test_a_cell_that_is_opened_before_its_notebook_names_it_is_completed() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            open_book(client, cell("A", "a = 1"))
            late = cell("Z", "z = ")
            client.notify("textDocument/didOpen", {"textDocument": late})
            assert await client.texts(0, 4, uri=late["uri"]) == []
            splice(client, 1, 0, "Z")
            assert await client.texts(0, 4, uri=late["uri"]) == ["z = 1"]
            assert (fake.asked[-1].body["prefix"], fake.asked[-1].body["path"]) == ("a = 1\nz = ", "n.ipynb")

    run(scenario())


def test_cells_that_went_to_another_notebook_outlive_their_first_one() -> None:
    """As with "save as": the new notebook is opened before the old one is closed."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            cells = [cell("A", "a = 1"), cell("B", "x = ")]
            for uri in ("untitled:Untitled-1.ipynb", BOOK):
                open_book(client, *cells, uri=uri)
            client.notify("notebookDocument/didClose", {"notebookDocument": {"uri": "untitled:Untitled-1.ipynb"}})
            assert await client.texts(0, 4, uri=cells[1]["uri"]) == ["x = 1"]
            assert fake.asked[-1].body["prefix"] == "a = 1\nx = "
            client.notify("notebookDocument/didClose", {"notebookDocument": {"uri": BOOK}})
            assert await client.texts(0, 4, uri=cells[1]["uri"]) == []

    run(scenario())


@pytest.mark.parametrize(
    ("language", "kind"), [("Markdown", 2), ("markdown", 1), ("raw", 2), ("plaintext", 1), ("python", 1)]
)
def test_a_text_cell_is_one_by_its_language_or_its_kind(language: str, kind: int) -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            text = {**cell("T", "text"), "languageId": language}
            code = {**cell("B", "x = "), "languageId": "Python"}
            open_book(client, cell("A", "a = 1"), text, code, kinds=(2, kind))
            assert await client.texts(0, 4, uri=text["uri"]) == []
            assert "text cells" in (await client.status())["message"]
            assert await client.texts(0, 4, uri=code["uri"]) == ["x = 1"]
            assert fake.asked[-1].body["prefix"] == "a = 1\nx = "
            splice(client, 1, 1, "T")
            if language == "python":
                assert await client.texts(0, 4, uri=text["uri"]) == ["text1"], "it was made a code cell"

    run(scenario())


@pytest.mark.parametrize(
    ("line", "left_out"),
    [
        ("%load_ext x", True),
        ("  !ls", True),
        ("?print", True),
        ("os.path??", True),
        ("files = !ls -l", True),
        ("t = %timeit -o f()", True),
        ("  % 3)", False),
        ("%", False),
        ("a = b % c", False),
        ("a != b", False),
        ("# what?", False),
    ],
)
def test_what_is_a_magic(line: str, left_out: bool) -> None:
    document = Document("u", "python", 1, Buffer(f"a = 1\n{line}\nb = 2\n"))
    assert code_of(document.language_id, document.buffer.text) == (
        "a = 1\nb = 2\n" if left_out else document.buffer.text
    )
    assert is_magic("python", document.buffer, 1) == left_out


@pytest.mark.parametrize(
    ("fragment", "notebook"),
    [
        ("ch0000001", "file:///n.ipynb"),
        ("ch12345678", "file:///n.ipynb"),
        ("ch0000003untitled", "untitled:///n.ipynb"),
        ("ch0000003vscode-remote", "vscode-remote:///n.ipynb"),
        ("W0sAAAA", ""),
        ("ch1", ""),
    ],
)
def test_fragments_of_older_clients_and_of_none(fragment: str, notebook: str) -> None:
    assert notebook_of(f"vscode-notebook-cell:/n.ipynb#{fragment}") == notebook
