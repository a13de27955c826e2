"""Ghost text in JupyterLab: a server extension that asks codespec's daemon, and the provider that the browser loads.

The browser only talks to Jupyter's server, with Jupyter's token. So the daemon keeps refusing pages of other origins.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "codespec_jupyterlab.handler"}]


def _load_jupyter_server_extension(server: Any) -> None:
    from codespec_jupyterlab import handler

    handler._load_jupyter_server_extension(server)
