"""Look up the tip of a text in a separate process for each language.

A text that breaks a grammar kills only that process; its context then comes from the lexer alone.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any

from codespec_grammars.contexts import Context
from codespec_grammars.queries import Captures
from codespec_grammars.workers import Worker, WorkerDied

SERVICE = "codespec_grammars.window_service:WindowService"
SECONDS = 10.0  # wall-clock timeout: the process hits its CPU limit long before, but the first one has to start
log = logging.getLogger("codespec_grammars")
_lock = threading.Lock()
_workers: dict[str, Worker] = {}
_reported: set[str] = set()


class Broken(Exception):
    """Raised if the text broke the process."""


def prepare(language: str) -> None:
    """Start the process of a language that has a grammar, so that the first look-up doesn't wait for it."""
    with _lock:
        if language not in _workers:
            try:
                _workers[language] = Worker(SERVICE, language)
            except WorkerDied:
                return  # the first look-up tries again and reports the error


def find(language: str, text: str, tip: int, width: int, left: int) -> Captures | None:
    """Run `look_up` on the tree of a text. Returns None if the parse was given up. Raises Broken."""
    with _lock:
        try:
            reply = _ask(language, (text, tip, width, left))
        except WorkerDied as error:
            _report(language)
            raise Broken from error
    if reply is None:
        return None
    inside, token, ended, clean, errors = reply
    return Captures(_context(inside), _context(token), _context(ended), clean, errors)


def _ask(language: str, request: tuple[str, int, int, int]) -> Any:
    """Send a request to the language's process. An existing one may have died earlier, so retry with a new one."""
    worker = _workers.pop(language, None)
    if worker is not None:
        with suppress(WorkerDied):
            reply = worker.ask(request, SECONDS)
            _workers[language] = worker
            return reply
    worker = Worker(SERVICE, language)
    reply = worker.ask(request, SECONDS)
    _workers[language] = worker
    return reply


def _context(name: str | None) -> Context | None:
    return Context(name) if name else None


def _report(language: str) -> None:
    """Log a warning once for each language, because a text that breaks a grammar may recur with every key."""
    if language not in _reported:
        _reported.add(language)
        log.warning(
            "The %s grammar failed on a text (it crashed, or took too much time or memory): such texts are completed "
            "without their syntax.",
            language,
        )
