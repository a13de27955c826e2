"""Looks up the tips of texts in processes of their own, one for each language: a text that breaks a grammar costs that
process, and the lexer alone answers for it. Knows the service; knows no windows.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any

from codespec_grammars.contexts import Context
from codespec_grammars.queries import Found
from codespec_grammars.workers import Worker, WorkerDied

SERVICE = "codespec_grammars.window_service"
SECONDS = 10.0  # of the clock: the process ends itself long before, and the first one has to be started
log = logging.getLogger("codespec_grammars")
_lock = threading.Lock()
_workers: dict[str, Worker] = {}
_reported: set[str] = set()


class Broken(Exception):
    """The text broke the process."""


def prepare(language: str) -> None:
    """Has the process of a language with a grammar started, so that the first look-up need not wait for it."""
    with _lock:
        if language not in _workers:
            try:
                _workers[language] = Worker(SERVICE, language)
            except WorkerDied:
                return  # the first look-up tries again, and reports it


def find(language: str, text: str, tip: int, width: int, left: int) -> Found | None:
    """What `look_up` finds in a text's tree; None if the parse was given up. Raises Broken."""
    with _lock:
        try:
            reply = _ask(language, (text, tip, width, left))
        except WorkerDied as error:
            _report(language)
            raise Broken from error
    if reply is None:
        return None
    inside, token, ended, clean, errors = reply
    return Found(_context(inside), _context(token), _context(ended), clean, errors)


def _ask(language: str, request: tuple[str, int, int, int]) -> Any:
    """Asks the process of a language. One that was there may have died of something else, so a new one decides."""
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
    """Once for each language: a text that breaks a grammar may come with every key."""
    if language not in _reported:
        _reported.add(language)
        log.warning(
            "The %s grammar failed on a text (it crashed, or took too much time or memory): such texts are completed "
            "without their syntax.",
            language,
        )
