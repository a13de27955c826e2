"""Replicas of the daemon behind one address, on Ray Serve: `codespec scale up`, `serve run codespec_scale:app`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codespec_scale.application import app
    from codespec_scale.relay import middlewares

__all__ = ["app", "middlewares"]


def __getattr__(name: str) -> Any:
    """Import an attribute that Ray looks up by name. Only these attributes need Ray to be installed."""
    if name == "app":
        from codespec_scale.application import app

        return app
    if name == "middlewares":
        from codespec_scale.relay import middlewares

        return middlewares
    raise AttributeError(name)
