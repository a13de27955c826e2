"""The extension of Jupyter's server: `POST codespec/complete`, for the users of that server only.

The settings have the names of the language server's, for example `c.Codespec.settings = {"model": "..."}` in
`jupyter_server_config.py`. As in the language server, a daemon is started if none runs, and secret and ignored files
are not completed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codespec_lsp.daemon import Daemons
from codespec_lsp.exclusions import Exclusions
from codespec_lsp.settings import EditorSettings, read_settings
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import authenticated
from traitlets import Dict
from traitlets.config import LoggingConfigurable

from codespec.errors import DaemonError
from codespec_jupyterlab.cells import read_cells


class Codespec(LoggingConfigurable):  # type: ignore[misc]
    """Completes cells of notebooks, and files, below the server's root folder."""

    settings = Dict(help="the language server's settings, as docs/editors.md lists them").tag(config=True)

    def __init__(self, root: Path, **more: Any) -> None:
        super().__init__(**more)
        self._root = root
        self._editor, faults = read_settings(self.settings, EditorSettings())
        for fault in faults:
            self.log.warning(fault)
        self._daemons, self._exclusions = Daemons(), Exclusions()
        self._exclusions.set_roots([str(root)])
        self._exclusions.set_globs(self._editor.exclude, self._editor.secret_files, self._editor.not_secret_files)

    async def complete(self, sent: object) -> str:
        """Return the completion at the cursor, or "" if there is none. Raises DaemonError or ValueError."""
        body = read_cells(sent)
        editor = self._editor
        if body is None or not editor.enabled or not editor.languages.get(body.get("language", ""), True):
            return ""
        uri = (self._root / body.get("path", "")).as_uri()
        await self._exclusions.refresh([uri])
        if self._exclusions.known(uri) != "":
            return ""
        client, starter = self._daemons.find(editor)
        await starter.ensure()
        text = ""
        asked = {**body, "max_tokens": editor.max_tokens, "deadline_ms": editor.invoked_budget_ms}
        async with contextlib.aclosing(client.events(asked)) as events:
            async for name, value in events:
                text += str(value.get("text", "")) if name == "text" else ""
        return text

    async def close(self) -> None:
        """Close the connections to the daemon, which keeps running."""
        await self._daemons.close()
        await self._exclusions.end()


class CompleteHandler(APIHandler):  # type: ignore[misc]
    """Replies with `text`, or with an error as `message`. A disconnected client cancels the completion."""

    def initialize(self, codespec: Codespec) -> None:
        """Store the extension (a hook of Tornado)."""
        self._codespec = codespec
        self._work: asyncio.Task[str] | None = None

    @authenticated  # type: ignore[untyped-decorator]
    async def post(self) -> None:
        """Complete the cells in the body."""
        self._work = asyncio.ensure_future(self._codespec.complete(self.get_json_body()))
        try:
            self._reply({"text": await self._work})
        except ValueError as error:
            self.set_status(400)
            self._reply({"message": str(error)})
        except DaemonError as error:
            self.set_status(503)
            self._reply({"message": str(error)})

    def on_connection_close(self) -> None:
        """Cancel the completion (a hook of Tornado)."""
        if self._work is not None:
            self._work.cancel()

    def _reply(self, values: Mapping[str, str]) -> None:
        self.finish(json.dumps(values))


def _load_jupyter_server_extension(server: Any) -> None:
    root = Path(server.root_dir).resolve()
    codespec = Codespec(root, parent=server)
    route = url_path_join(server.web_app.settings["base_url"], "codespec/complete")
    server.web_app.add_handlers(".*$", [(route, CompleteHandler, {"codespec": codespec})])
