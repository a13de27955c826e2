"""Notebooks, sent as by VS Code and as text documents.

A cell is completed after the code of the cells above it; text cells and magics are skipped; the notebook's path decides
exclusions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp.buffer import Buffer
from codespec_lsp.documents import notebook_of
from codespec_lsp.prompt import build_prompt
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.limits import MAX_SIDE
from tests.lsp.conversation import Editor, insertion, run
from tests.lsp.fake_daemon import FakeDaemon, talking
from tests.lsp.test_process import PATIENT

SYNCHRONIZED = {
    "capabilities": {"notebookDocument": {"synchronization": {}}, "textDocument": {"inlineCompletion": {}}},
    **PATIENT,
}
CODE, TEXT = 2, 1
CELLS = [
    "# Title\n",
    "import os\n%matplotlib inline\ndef area(w):\n    return w",
    "!pip install x",
    "%%bash\nls\n",
    "y = ",
]
ABOVE = "import os\ndef area(w):\n    return w\n"


def cell_uri(number: int, path: str = "/p/a.ipynb") -> str:
    return f"vscode-notebook-cell:{path}#W{number}sZmlsZQ%3D%3D"


def cell(number: int, path: str) -> dict[str, Any]:
    return {"kind": TEXT if number == 0 else CODE, "document": cell_uri(number, path), "metadata": {"x": None}}


def item(number: int, text: str, path: str) -> dict[str, Any]:
    language = "markdown" if number == 0 else "python"
    return {"uri": cell_uri(number, path), "languageId": language, "version": 1, "text": text}


def open_notebook(client: Editor, path: str = "/p/a.ipynb", texts: Sequence[str] = CELLS) -> None:
    """Open a notebook as VS Code does."""
    numbers = range(len(texts))
    cells = [cell(number, path) for number in numbers]
    notebook = {"uri": f"file://{path}", "notebookType": "jupyter-notebook", "version": 1, "cells": cells}
    documents = [item(number, texts[number], path) for number in numbers]
    client.notify("notebookDocument/didOpen", {"notebookDocument": notebook, "cellTextDocuments": documents})


def open_cells(client: Editor, path: str = "/p/a.ipynb", texts: Sequence[str] = CELLS) -> None:
    """Open the cells one by one as text documents."""
    for number, text in enumerate(texts):
        client.notify("textDocument/didOpen", {"textDocument": item(number, text, path)})


def change(client: Editor, cells: dict[str, Any]) -> None:
    notebook = {"uri": "file:///p/a.ipynb", "version": 2}
    client.notify("notebookDocument/didChange", {"notebookDocument": notebook, "change": {"cells": cells}})


@asynccontextmanager
async def notebooks(**start: Any) -> AsyncIterator[tuple[Editor, FakeDaemon]]:
    """Run a server, initialized, and a daemon that completes with 1."""
    async with talking(start={**SYNCHRONIZED, **start}) as (client, fake):
        fake.script = ["1"]
        yield client, fake


def test_what_a_client_with_notebooks_is_offered() -> None:
    async def scenario() -> None:
        async with notebooks() as (client, _):
            assert client.capabilities["notebookDocumentSync"] == {"notebookSelector": [{"notebook": "*"}]}
        async with notebooks(capabilities={}) as (client, _):
            assert "notebookDocumentSync" not in client.capabilities

    run(scenario())


@pytest.mark.parametrize("open_it", [open_notebook, open_cells])
def test_a_cell_goes_on_from_the_code_above_it(open_it: Callable[[Editor], None]) -> None:
    async def scenario() -> None:
        async with notebooks() as (client, fake):
            open_it(client)
            assert await client.texts(0, 4, uri=cell_uri(4)) == ["y = 1"]
            body = fake.asked[-1].body
            assert (body["prefix"], body["suffix"], body["prefix_offset"]) == (f"{ABOVE}y = ", "", 0)
            assert (body["path"], body["language"], body["snippets"]) == ("p/a.ipynb", "python", [])
            assert body["cursor"]["open_brackets"] == ""
            (only,) = await client.items(3, 12, uri=cell_uri(1))
            assert only["range"]["end"] == {"line": 3, "character": 12}, "positions are the cell's own"
            assert fake.asked[-1].body["prefix"] == CELLS[1], "nothing of the cells below, and nothing is left out"

    run(scenario())


@pytest.mark.parametrize("open_it", [open_notebook, open_cells])
def test_text_cells_and_magics_are_left_alone(open_it: Callable[[Editor], None]) -> None:
    async def scenario() -> None:
        async with notebooks() as (client, fake):
            open_it(client)
            for number, line, words in ((0, 0, "text cells"), (1, 1, "Magics"), (2, 0, "Magics"), (3, 1, "Magics")):
                assert await client.texts(line, 2, uri=cell_uri(number)) == []
                status = await client.status()
                assert (status["kind"], words in status["message"]) == ("Inactive", True), (number, line)
            assert fake.asked == []

    run(scenario())


def test_cells_come_go_move_and_change() -> None:
    async def scenario() -> None:
        async with notebooks() as (client, fake):

            async def prefix(number: int, character: int) -> str:
                assert await client.texts(0, character, uri=cell_uri(number)) != []
                return str(fake.asked[-1].body["prefix"])

            open_notebook(client, texts=["#", "a = 1", "b = 2", "c = "])
            assert await prefix(3, 4) == "a = 1\nb = 2\nc = "
            new = {"start": 2, "deleteCount": 1, "cells": [cell(7, "/p/a.ipynb")]}
            gone = [{"uri": cell_uri(2)}]
            change(client, {"structure": {"array": new, "didOpen": [item(7, "n = 7", "/p/a.ipynb")], "didClose": gone}})
            assert await prefix(3, 4) == "a = 1\nn = 7\nc = "
            edits = [{"document": {"uri": cell_uri(1), "version": 2}, "changes": [insertion(0, 4, "5")]}]
            change(client, {"textContent": edits})
            assert await prefix(3, 4) == "a = 51\nn = 7\nc = "
            change(client, {"structure": {"array": {"start": 3, "deleteCount": 1, "cells": None}}})
            change(client, {"structure": {"array": {"start": 0, "deleteCount": 0, "cells": [cell(3, "/p/a.ipynb")]}}})
            assert await prefix(3, 4) == "c = ", "it was moved to the top"
            change(client, {"data": [cell(1, "/p/a.ipynb")]})
            client.notify("notebookDocument/didClose", {"notebookDocument": {"uri": "file:///p/a.ipynb"}})
            assert await client.texts(0, 4, uri=cell_uri(3)) == []
            assert "did not open" in (await client.status())["message"]

    run(scenario())


@pytest.mark.parametrize("open_it", [open_notebook, open_cells])
def test_exclusions_go_by_the_notebooks_path(open_it: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / ".codespecignore").write_text("private.ipynb\n")

    async def scenario() -> None:
        async with notebooks(rootUri=tmp_path.as_uri()) as (client, fake):
            for name, words in (
                ("private.ipynb", "excluded by .codespecignore"),
                (".env.ipynb", "may hold secrets"),
            ):
                path = str(tmp_path / name)
                open_it(client, path)
                assert await client.texts(0, 4, uri=cell_uri(4, path)) == []
                assert words in (await client.status())["message"]
            client.open("z = \n")
            assert await client.texts(0, 4) == ["z = 1"]
            assert fake.asked[-1].body["snippets"] == [], "nor are they sent with another file"
            client.notify(
                "textDocument/didClose", {"textDocument": {"uri": cell_uri(3, str(tmp_path / "private.ipynb"))}}
            )
            assert await client.texts(0, 4, uri=cell_uri(4, str(tmp_path / "private.ipynb"))) == []

    run(scenario())


def test_a_change_of_a_notebook_that_is_odd_is_refused_aloud() -> None:
    async def scenario() -> None:
        async with notebooks() as (client, _):
            open_notebook(client)
            change(client, {"textContent": [{"document": {"uri": cell_uri(4)}, "changes": [{"text": 3}]}]})
            assert await client.texts(0, 4, uri=cell_uri(4)) == []
            assert "could not be read" in (await client.status())["message"]
            open_notebook(client)
            assert await client.texts(0, 4, uri=cell_uri(4)) == ["y = 1"]

    run(scenario())


def test_what_a_cell_imports_lies_beside_the_notebook(tmp_path: Path) -> None:
    (tmp_path / "price.py").write_text("def total(cart: list) -> int:\n    return 1\n")
    path = str(tmp_path / "a.ipynb")

    async def scenario() -> None:
        async with talking(start={**SYNCHRONIZED, "rootUri": tmp_path.as_uri()}) as (client, fake):
            fake.script = ["1"]
            open_notebook(client, path, ["#", "from price import total\ny = "])
            typed = 0
            while not fake.asked or not fake.asked[-1].body["snippets"]:
                client.type(typed + 2, 1, 4 + typed, "x", uri=cell_uri(1, path))
                typed += 1
                await client.texts(1, 4 + typed, uri=cell_uri(1, path), trigger=1)
            (snippet,) = fake.asked[-1].body["snippets"]
            assert "def total" in snippet["text"]

    run(scenario())


@pytest.mark.parametrize(
    ("uri", "notebook"),
    [
        ("vscode-notebook-cell:/p/a%20b.ipynb#W0sZmlsZQ%3D%3D", "file:///p/a%20b.ipynb"),
        ("vscode-notebook-cell:/C%3A/a.ipynb#X10sZmlsZQ==", "file:///c:/a.ipynb"),
        ("vscode-notebook-cell://wsl%24/d/a.ipynb#W0sZmlsZQ", "file://wsl%24/d/a.ipynb"),
        ("vscode-notebook-cell:Untitled-1.ipynb#W0sdW50aXRsZWQ%3D", "untitled:Untitled-1.ipynb"),
        ("vscode-notebook-cell:/p/a.ipynb#W0s%FF", ""),
        ("vscode-notebook-cell:/p/a.ipynb", ""),
        ("file:///p/a.ipynb#W0sZmlsZQ", ""),
    ],
)
def test_the_notebook_that_a_cell_names(uri: str, notebook: str) -> None:
    assert notebook_of(uri) == notebook


@given(st.lists(st.text("ab\u00e9\n", max_size=9000), max_size=20), st.text("xy\n", max_size=20))
def test_the_start_of_what_is_sent_moves_in_steps(above: list[str], typed: str) -> None:
    """Otherwise the daemon would prefill everything again at each key."""
    text, buffer, starts = "".join(f"{piece}\n" for piece in above), Buffer(""), set()
    for count in range(len(typed) + 1):
        buffer.replace_all(typed[:count])
        prompt = build_prompt("file:///a", buffer, buffer.position(len(buffer.lines), 0), above=text)
        assert (text + typed[:count])[prompt.offset :] == prompt.prefix and len(prompt.prefix.encode()) <= MAX_SIDE
        assert prompt.own_prefix == typed[:count] and prompt.own_offset == 0
        assert prompt.offset == 0 or text[prompt.offset - 1] == "\n"
        starts.add(prompt.offset)
    assert len(starts) <= 2
