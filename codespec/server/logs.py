"""The daemon's log, which never holds a client's text. Knows exceptions by their kind and place only."""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger("codespec.server")


def log_failure(what: str, error: BaseException) -> None:
    """What failed, the kind of error and our lines; not its message, which may hold source text."""
    log.error("%s (%s)\n%s", what, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
