"""x-session-id: one for each document, stable while typing, and without anything readable in it."""

from __future__ import annotations

import re

from tests.lsp.conversation import URI, run
from tests.lsp.fake_daemon import talking

OTHER = "file:///other.py"


def test_a_document_keeps_its_session_id() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            fake.script = ["1"]
            client.open("x = \n")
            client.open("y = \n", uri=OTHER)
            await client.texts(0, 4)
            client.type(2, 0, 4, "2 + ")
            await client.texts(0, 8)
            await client.texts(0, 4, uri=OTHER)
            documents = {one.body["document"] for one in fake.asked}
            assert len(documents) == 2
            assert len(set(fake.sessions)) == 2, "one for each document, warm-ups included"
            for session in fake.sessions:
                assert re.fullmatch(r"[0-9a-f]{32}", session) and session not in (URI, OTHER)

    run(scenario())
