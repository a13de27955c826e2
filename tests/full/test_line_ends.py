"""A real model writes the same text behind LF and behind CRLF: TEST_LLAMA_MODEL names a Qwen-Coder .gguf file.

100 places after the first line of a block, through the language server and a daemon of its own, greedy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from codespec_lsp.settings import EditorSettings

from codespec.client import starter
from tests.lsp.conversation import run
from tests.lsp.fake_daemon import editor
from tests.lsp.test_daemon_process import free_port

MODEL = os.environ.get("TEST_LLAMA_MODEL", "")
pytestmark = [pytest.mark.full, pytest.mark.skipif(not MODEL, reason="TEST_LLAMA_MODEL is not set")]
ABOVE = (
    "def read_rows(path):\n",
    "import csv\n\n\ndef load(path, rows):\n    total = 0\n",
    "class Store:\n    def __init__(self, path):\n        self.path = path\n\n    def load(self, path, rows, total):\n",
    "rows = []\n\n\ndef copy(path, target, rows):\n    total = len(rows)\n",
    "def main(path, rows=()):\n    # Read what is there.\n    total = len(rows)\n",
)
HEADS = (
    "with open(path) as file:",
    "with open(path, newline='') as file:",
    "for row in rows:",
    "if not rows:",
    "while total > 0:",
    "try:",
    "if path.endswith('.csv'):",
    "for number, row in enumerate(rows):",
    "with open(path, 'rb') as file:",
    "if total > len(rows):",
)
BELOW = ("\n", "\n\n\ndef other(path):\n    return len(path)\n")


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the daemon with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    begun: list[Any] = []
    monkeypatch.setattr(starter, "_started", begun)
    yield
    for process in begun:
        process.kill()
        process.wait()


def places() -> list[tuple[str, int, int]]:
    """Return each text, and the line and the character of its cursor, which is after the indentation of the block."""
    found = []
    for above, head, below in product(ABOVE, HEADS, BELOW):
        indent = "        " if above.startswith("class") else "    "
        before = f"{above}{indent}{head}\n{indent}    "
        found.append((before + below, before.count("\n"), len(indent) + 4))
    return found


def test_both_line_ends_get_one_text(ended: None) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    arguments = ("--target", MODEL, "--drafter", "none", "--dtype", "native", "--no-learn")
    # Few tokens, which no busy machine cuts by time: the text of one would be the beginning of the other's.
    settings = EditorSettings(url=url, budget_ms=60_000, max_tokens=24, daemon_arguments=arguments, snippets=False)

    async def scenario() -> list[tuple[list[str], list[str]]]:
        pairs = []
        async with editor(settings) as client:
            await client.start()
            for number, (text, line, character) in enumerate(places()):
                shown = []
                for name, newline in (("lf", "\n"), ("crlf", "\r\n")):
                    uri = f"file:///p/{name}{number}/a.py"
                    client.open(text.replace("\n", newline), uri=uri)
                    texts = await client.texts(line, character, uri=uri)
                    shown.append([each.replace("\r\n", "\n") for each in texts])
                    client.close(uri)
                pairs.append((shown[0], shown[1]))
        return pairs

    pairs = run(scenario(), seconds=3000)
    written = sum(bool(behind_lf) for behind_lf, _ in pairs)
    differ = [(number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]]
    print(f"{len(pairs)} places, {written} with a text, {len(differ)} differ", *differ, sep="\n")
    assert len(pairs) == 100 and written >= 50
    assert differ == []
