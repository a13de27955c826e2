"""From the editor to another server: no request names a place on the user's machine."""

from __future__ import annotations

import json
from pathlib import Path

from codespec_lsp.settings import EditorSettings

from plugins.upstream.tests.servers import FakeServer
from tests.lsp.conversation import insertion, run
from tests.lsp.fake_daemon import editor
from tests.server.daemons import Served


def test_no_request_has_an_absolute_path(upstream: FakeServer, daemon: Served, tmp_path: Path) -> None:
    """Neither of a file in the workspace nor of one outside, nor of the open files that go along."""
    shop, other = tmp_path / "shop/src", tmp_path / "other/src"

    async def scenario() -> None:
        settings = EditorSettings(url=f"http://127.0.0.1:{daemon.port}", start_daemon=False, budget_ms=60_000)
        async with editor(settings) as client:
            await client.start(rootUri=shop.parent.as_uri())
            client.open("import os\n\n\ntotal = 1\n", uri=(other / "price.py").as_uri())
            client.change(2, insertion(3, 0, "rows = 2\n"), uri=(other / "price.py").as_uri())
            for folder in (shop, other):
                client.open("from price import total\nx = ", uri=(folder / "cart.py").as_uri())
                assert await client.texts(1, 4, uri=(folder / "cart.py").as_uri())

    run(scenario())
    sent = [json.dumps(request.body) for request in upstream.streams]
    assert len(sent) >= 2 and not any(str(tmp_path) in each for each in sent)
    assert all("<|file_sep|>src/price.py" in each and "<|file_sep|>src/cart.py" in each for each in sent)
