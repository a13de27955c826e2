"""`codespec lsp` with open files that break or stall grammars: it stays small and answers in other documents."""

from __future__ import annotations

import asyncio
import time

import pytest
from codespec_grammars import language_names
from codespec_grammars.language import languages

from tests.grammars.nested import openers
from tests.lsp.conversation import Editor, until
from tests.lsp.fake_daemon import FakeDaemon
from tests.lsp.test_process_hostile import SharedServer
from tests.lsp.test_process_hostile import shared as shared

DEEP = 100_000
MAX_TIMES = 20  # of an answer beside a clean text
CLEAN = ("x = 1\n", "a b\n")
# Texts, found among many, that broke a grammar or took it a second.
PIECES = ("- ", "a<", "<a>", "(", "[", "{", "'", "`${", "<script>", "for(", "a=>")


async def seconds_of_another(client: Editor) -> float:
    """Return the seconds of a request in another document."""
    began = time.perf_counter()
    assert await client.texts(0, 4) == ["y = 1"]
    return time.perf_counter() - began


async def least_beside(client: Editor, language: str, number: int, text: str) -> float:
    """Open a text, request completions at its end while it is edited, and close it.

    Return the fewest seconds that a request in another document takes meanwhile: a busy machine delays any of them.
    """
    data = languages()[language]
    uri = f"file:///nested/{number}{data.files[0].lstrip('*')}"
    client.open(text, uri=uri, language=data.ids[0] if data.ids else language)
    row, column = text.count("\n"), len(text) - text.rfind("\n") - 1
    seconds = []
    for version in range(2, 6):
        seconds.append(await seconds_of_another(client))
        client.type(version, row, column, "a", uri=uri)
        await client.texts(row, column, uri=uri)
        seconds.append(await seconds_of_another(client))
    client.close(uri)
    return min(seconds)


async def try_texts(client: Editor, language: str, texts: list[str]) -> None:
    """Compare requests beside these texts with those beside clean ones of the same length."""
    client.open("y = \n")
    await seconds_of_another(client)
    clean = [piece * (len(texts[0]) // len(piece)) for piece in CLEAN]
    usual = [await least_beside(client, language, number, text) for number, text in enumerate(clean)]
    found = [await least_beside(client, language, number, text) for number, text in enumerate(texts, len(clean))]
    assert max(found) < MAX_TIMES * max(usual)


@pytest.mark.parametrize("language", ["python", "typescript", "cpp", "yaml", "html"])  # of all kinds of scanners
def test_files_of_nested_openers(language: str, shared: SharedServer) -> None:
    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        await try_texts(client, language, [piece * (DEEP // len(piece)) for piece in PIECES])

    shared.run(scenario)


@pytest.mark.full
@pytest.mark.parametrize("language", language_names())
def test_files_of_all_nested_openers(language: str, shared: SharedServer) -> None:
    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        for piece in openers(language):
            await try_texts(client, language, [piece * 300, piece * DEEP])

    shared.run(scenario, seconds=3600)


def test_a_file_whose_parse_is_stopped_is_completed_without_it_and_that_is_logged_once(shared: SharedServer) -> None:
    async def scenario(client: Editor, fake: FakeDaemon) -> None:
        uri = "file:///A.java"
        client.open("a<" * 32_768, uri=uri, language="java")
        await until(lambda: bool(client.heard("window/logMessage")))
        for version in range(2, 5):
            client.type(version, 0, 65_536, "b", uri=uri)
            assert len(await client.texts(0, 65_537, uri=uri)) == 1
            await asyncio.sleep(0.1)
        (told,) = client.heard("window/logMessage")
        assert told["message"].startswith("codespec: /A.java is completed without the syntax of its whole text")

    shared.run(scenario)
