"""Ghost text in JupyterLab: an extension of Jupyter's server that queries the daemon, and a provider for the browser.

The browser talks only to Jupyter's server, with Jupyter's token, so the daemon need not accept requests from web pages.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "codespec_jupyterlab.handler"}]


def _load_jupyter_server_extension(server: Any) -> None:
    from codespec_jupyterlab import handler

    handler._load_jupyter_server_extension(server)
