"""Use a running daemon for `codespec complete`, if it would write the same text as this process.

That requires the same version, model and settings, and the same drafts if they are shown. If a running daemon can't be
used, one line says why. Does not import torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import chain

from codespec import __version__
from codespec.cli.daemon_call import Address, find_address
from codespec.client.daemon_client import Found
from codespec.contract.body import CompletionBody
from codespec.contract.engine_config import EngineConfig
from codespec.contract.limits import MOST_SIDE
from codespec.contract.types import CompletionRequest, Event, TextEvent, event_from_json
from codespec.errors import ConfigError, DaemonError, RequestError
from codespec.store.resolve import find_difference, identity_of

SECONDS = 600.0  # between two events: a long prompt may have to be prefilled first
REFUSALS = {
    "locked": "asks for a token (CODESPEC_SERVE_TOKEN)",
    "stranger": "can't prove that it is yours",
    "silent": "does not answer as a daemon does",
}


def ask_daemon(options: argparse.Namespace, config: EngineConfig, request: CompletionRequest) -> Iterator[Event] | None:
    """Return the events of the user's own daemon, or None if the models must be loaded here.

    If a running daemon can't be used, print the reason on stderr. Raise RequestError for a request that the daemon
    refuses.
    """
    try:
        address = find_address(options)
        found = address.look()
    except ConfigError as error:
        _load_here(f"no daemon can be asked ({error.fault.clause})")
        return None
    if found.who == "nobody":
        if sys.stderr.isatty():  # not worth a line in a script, as it is no fault
            _load_here("no daemon runs, which would have them loaded already (`codespec serve`)")
        return None
    where = f"the daemon at {address.url}"
    if reason := _why_not(found, config, request, drafts=options.show_draft or options.json):
        _load_here(f"{where} can't be asked ({reason})")
        return None
    events = _events(address, request)
    try:
        first = next(events)
    except DaemonError as error:
        if error.status == 400:
            raise RequestError(error.fault) from error
        _load_here(f"{where} did not answer ({error.fault.clause})")
        return None
    say(found.daemon["notes"])
    return chain([first], events)


def ask_upstream(options: argparse.Namespace, request: CompletionRequest) -> Iterator[Event] | None:
    """Return the events of the user's own daemon if another server writes for it, which needs no model here.

    Return None without such a daemon. Raise DaemonError if it can't answer.
    """
    try:
        address = find_address(options)
        found = address.look()
    except ConfigError:
        return None  # `ask_daemon` says why
    if found.who != "daemon" or not found.daemon.get("upstream"):
        return None
    say(found.daemon["notes"])
    return _events(address, request)


def say(notes: Iterable[str]) -> None:
    """Print notes for the user on stderr, apart from the text."""
    for note in notes:
        print(f"codespec: {note}", file=sys.stderr)


def _load_here(reason: str) -> None:
    """Print why this process loads the models itself."""
    say([f"loading the models here: {reason}"])


def _why_not(found: Found, config: EngineConfig, request: CompletionRequest, *, drafts: bool) -> str:
    """Return why the daemon can't write the same completion as this process, or "" if it can."""
    if found.who != "daemon":
        return f"it {REFUSALS[found.who]}"
    daemon = found.daemon
    if daemon["version"] != __version__:
        return f"it is codespec {daemon['version']}, this is {__version__}"
    if daemon["state"] != "ready":
        return f"it is {daemon['state']}"
    if max(len(request.prefix), len(request.suffix)) > MOST_SIDE:
        return f"it takes {MOST_SIDE:,} characters on each side of the cursor"
    if request.max_tokens > daemon["context"] // 2:
        return f"it writes at most {daemon['context'] // 2} tokens"
    return find_difference(
        identity_of(config), daemon.get("identity") or {}, drafts=drafts and request.speculate is not False
    )


def _events(address: Address, request: CompletionRequest) -> Iterator[Event]:
    """Yield the daemon's events as the engine's own types. Raise DaemonError."""
    body: CompletionBody = {
        "prefix": request.prefix,
        "suffix": request.suffix,
        "path": request.path,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "shape": request.shape,
        "heal": request.heal,
        "token_ids": True,
    }
    if request.speculate is not None:
        body["speculate"] = request.speculate
    text = ""
    for name, value in address.stream(body, SECONDS):
        event = event_from_json(name, value, text)
        if isinstance(event, TextEvent):
            text += event.text
        if event is not None:
            yield event
