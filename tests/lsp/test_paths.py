"""No request names a place on the user's machine: paths begin at the workspace, or with the file's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codespec_lsp import daemon

from tests.lsp.conversation import insertion, run, until
from tests.lsp.edit_conversation import UNCHANGED, done, next_edit
from tests.lsp.fake_daemon import talking
from tests.lsp.test_notebooks import SYNCHRONIZED, cell_uri, open_cells, open_notebook


def test_no_request_has_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the workspace and outside it, saved or not, in notebooks, and for files that go along, open or not."""
    monkeypatch.setattr(daemon, "FILES_DELAY_S", 0.0)
    shop, other = tmp_path / "shop", tmp_path / "other"
    for folder in (shop / "src", other / "src"):
        folder.mkdir(parents=True)
        (folder.parent / ".git").mkdir()
        (folder / "price.py").write_text("def total(orders): ...\n")
        (folder / "tax.py").write_text("def tax(total): ...\n")

    async def scenario() -> None:
        start = {"rootUri": shop.as_uri(), **SYNCHRONIZED}
        async with talking(start=start, next_edit_budget_ms=60_000) as (client, fake):
            fake.script, fake.edit_format, fake.edit_script = ["1"], "sweep-server", [done(0, 0, 3, UNCHANGED)]
            files = [folder / "src/cart.py" for folder in (shop, other)]
            uris = [file.as_uri() for file in files] + [f"untitled:{shop}/new.py"]
            for folder in (shop, other):
                client.open("import tax\ntotal = 1\n", uri=(folder / "src/price.py").as_uri())
                client.change(2, insertion(1, 0, "rows = 2\n"), uri=(folder / "src/price.py").as_uri())
            for uri in uris:
                sent = len(fake.files)
                client.open("from price import total\nimport tax\nx = ", uri=uri)
                await until(lambda count=sent: len(fake.files) > count)  # type: ignore[misc]
                assert await client.texts(2, 4, uri=uri)
                client.change(2, insertion(1, 0, "# note\n"), uri=uri)
                assert await next_edit(client, 1, 0, uri=uri) == UNCHANGED
            open_notebook(client, f"{shop}/src/a.ipynb")
            open_cells(client, f"{other}/src/b.ipynb")
            for path in (f"{shop}/src/a.ipynb", f"{other}/src/b.ipynb"):
                assert await client.texts(0, 4, uri=cell_uri(4, path))
            await until(lambda: len(fake.warmed) >= 1)
            bodies, edits = [each.body for each in (*fake.asked, *fake.warmed)], [each.body for each in fake.edits]
            assert not any(str(tmp_path) in json.dumps(body) for body in (*bodies, *edits, *fake.files))
            named = {body["path"] for body in bodies} | {each["path"] for body in bodies for each in body["snippets"]}
            named |= {each["path"] for body in fake.files for each in body["files"]} | {body["path"] for body in edits}
            named |= {each["path"] for body in edits for each in body["history"]}
            assert {"src/cart.py", "src/price.py", "src/tax.py", "src/a.ipynb", "src/b.ipynb"} <= named
            assert not any(Path(path).is_absolute() for path in named)

    run(scenario())
