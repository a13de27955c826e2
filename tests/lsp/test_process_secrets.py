"""`codespec serve` and `codespec lsp` as processes: the daemon rejects the same files that the language server does not
send.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.config.test_secret_files import OTHERS, SECRETS
from tests.lsp.conversation import Editor, run
from tests.lsp.test_process import on_pipes, started
from tests.server.test_process import Process, daemon

PATH = "/v1/codespec/complete"
SLOW = "until its folder can be read"
QUICK = {"initializationOptions": {"budgetMs": 60_000, "maxTokens": 1, "snippets": False}}


def taken(served: Process, path: str) -> bool:
    """Return whether the daemon accepts a file as context."""
    status, message = served.ask(
        "POST", PATH, {"prefix": "x", "max_tokens": 1, "snippets": [{"path": path, "text": "a"}]}
    )
    assert status == 200 or b"may hold secrets" in message
    return status == 200


async def completed(client: Editor, uri: str) -> bool:
    """Return whether the language server sends a request for a file."""
    client.open("x = \n", uri=uri)
    status: dict[str, Any] = {"message": SLOW}
    while SLOW in status["message"]:  # on a busy machine: the folder is asked for again
        await client.texts(0, 4, uri=uri)
        status = await client.status()
    assert status["kind"] == "Normal" or "may hold secrets" in status["message"], status
    return bool(status["kind"] == "Normal")


def test_both_mean_the_same_files(models: Models, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "notes.py").symlink_to("prod.env")
    (tmp_path / "notes.txt").symlink_to("other.py")

    async def scenario(served: Process) -> dict[str, bool]:
        with started("--daemon", f"http://127.0.0.1:{served.port}") as process:
            async with on_pipes(process) as client:
                await client.start(**QUICK)
                links = [await completed(client, (tmp_path / name).as_uri()) for name in ("notes.py", "notes.txt")]
                assert links == [False, True]
                found = {
                    path: await completed(client, path if path.startswith("file:") else f"file:///p/{quote(path)}")
                    for path in SECRETS + OTHERS
                }
                await client.shut_down()
                return found

    with daemon(*models.flags, "--warmup", "0") as served:
        served.until_ready()
        found = run(scenario(served), seconds=600)
        assert found == {path: taken(served, path) for path in SECRETS + OTHERS}
    assert [path for path in found if found[path]] == OTHERS
