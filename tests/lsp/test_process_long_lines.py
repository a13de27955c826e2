"""`codespec lsp` with a line of a megabyte, as in minified files: a key costs about the same in any script."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.lsp.conversation import Editor, run
from tests.lsp.fake_daemon import daemon
from tests.lsp.test_process import on_pipes, started

ROUNDS = 5
OPTIONS = {"initializationOptions": {"budgetMs": 60_000, "completion": "on", "snippets": False}}
PLAIN, OTHERS = "word and, ", ("слово и, ", "😀😀😀😀、。")
MAX_TIMES = 20  # limit relative to an ASCII line of equal length


class LongLine:
    """A document of one line, with typing at its end."""

    def __init__(self, client: Editor, words: str, encoding: str) -> None:
        line = words * (500_000 // len(words))
        self._client, self._uri = client, f"file:///{ord(words[0])}.txt"
        self._column = len(line.encode(encoding)) // {"utf-8": 1, "utf-16-le": 2}[encoding]
        self._typed = 0
        client.open(line, uri=self._uri, language="plaintext")

    async def seconds_of_a_key(self) -> float:
        """Return the seconds of an edit and a completion request."""
        began, here = time.perf_counter(), self._column + self._typed
        self._typed += 1
        self._client.type(self._typed + 1, 0, here, "y", uri=self._uri)
        at = {"textDocument": {"uri": self._uri}, "position": {"line": 0, "character": here + 1}}
        reply = await self._client.request("textDocument/completion", at)
        seconds = time.perf_counter() - began
        (item,) = reply["result"]["items"]
        assert item["textEdit"]["newText"] == "y" * self._typed + "1"
        assert item["textEdit"]["range"]["start"] == {"line": 0, "character": self._column}
        return seconds


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-8"])
def test_a_key_in_a_long_line_without_ascii(encoding: str) -> None:
    """Keys are compared with those just before them, because the machine's speed varies."""
    asked = {"general": {"positionEncodings": [encoding.removesuffix("-le")]}}

    async def scenario() -> None:
        async with daemon() as fake:
            fake.script = ["1"]
            with started("--daemon", f"http://127.0.0.1:{fake.port}") as process:
                async with on_pipes(process) as client:
                    await client.start(**OPTIONS, capabilities=asked)
                    plain, *others = [LongLine(client, words, encoding) for words in (PLAIN, *OTHERS)]
                    for line in (plain, *others):
                        await line.seconds_of_a_key()  # the first key imports modules
                    times: list[list[float]] = [[], []]
                    for _ in range(ROUNDS):
                        usual = await plain.seconds_of_a_key()
                        for other, ratios in zip(others, times, strict=True):
                            ratios.append(await other.seconds_of_a_key() / usual)
                    assert max(map(statistics.median, times)) <= MAX_TIMES, times
                    await client.shut_down()

    run(scenario(), seconds=600)
