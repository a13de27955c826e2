"""`codespec complete FILE:LINE:COL`: complete code at a position in a file and print the text as it arrives.

If a daemon is running, its own models and settings are used. Without a daemon, or with `--local` or an engine setting,
this process loads the models, because a daemon started for one command would go on using gigabytes of memory.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from codespec.api.config import EngineConfig
from codespec.api.limits import MAX_SIDE
from codespec.api.types import Completion, CompletionRequest, DoneEvent, Event, RoundEvent, TextEvent, event_from_json
from codespec.cli.options import SETTINGS, Address, Parser, add_engine_options, choose_config, find_address, load_engine
from codespec.errors import ConfigError, DaemonError, RequestError
from codespec.files import NotUtf8, decode_text, read_named
from codespec.store.disk import say

PLAIN = {"speculate": False, "drafter": "none"}  # settings of --no-speculation: the drafter is not loaded
ACCEPTED, REJECTED, FAINT, RESET = "\x1b[32m", "\x1b[31;9m", "\x1b[2m", "\x1b[0m"
SECONDS = 600.0  # timeout between two events; before the first, a long prompt is prefilled
POLL_INTERVAL_S = 0.2  # seconds between two queries of a daemon that is loading
REFUSALS = {
    "locked": "requires a token (CODESPEC_SERVE_TOKEN)",
    "stranger": "can't prove that it is yours",
    "silent": "does not answer as a daemon does",
}


def add_parser(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "complete",
        help="complete one position in a file",
        usage="%(prog)s FILE:LINE:COL [options]",
        description="Completes FILE at LINE:COL (both start at 1). A running daemon completes, with its models "
        "and settings. Without one, or with --local, which a flag of the models implies, the models are loaded here.",
    )
    place_help = "COL counts characters; COL = length + 1 is the line's end"
    parser.add_argument("place", metavar="FILE:LINE:COL", help=place_help)
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--shape", choices=("auto", "line", "block", "raw"), default="auto", help="where the text ends")
    parser.add_argument("--no-heal", action="store_true", help="do not back up when the cursor is inside a token")
    parser.add_argument("--no-speculation", action="store_true", help="use the target alone: same text, slower")
    parser.add_argument("--local", action="store_true", help="load the models in this process, even if a daemon runs")
    printed = parser.add_mutually_exclusive_group()
    shown = "colour accepted, rejected and the target's own text; explain each draft's length"
    printed.add_argument("--show-draft", action="store_true", help=shown)
    printed.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_engine_options(parser, leave_out=("speculate",))  # this command has --no-speculation instead
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the completion as it arrives, and return 0."""
    request = read_request(options)
    painter = Painter(sys.stdout, colour=sys.stdout.isatty())
    for event in complete(options, request):
        if isinstance(event, DoneEvent):
            done = event.completion
            if options.json:
                shown = {"text": done.text, "finish_reason": done.finish_reason, "token_ids": list(done.token_ids)}
                print(json.dumps({**shown, "stats": asdict(done.stats)}, ensure_ascii=False))
            else:
                painter.plain("\n")
            if options.show_draft:
                painter.why()
                painter.summary(done)
            say(*done.stats.notes, *why_empty(done))
        elif isinstance(event, RoundEvent) and options.show_draft:
            painter.round(event)
        elif isinstance(event, TextEvent) and not options.json and not options.show_draft:
            painter.plain(event.text)
    return 0


def complete(options: argparse.Namespace, request: CompletionRequest) -> Iterator[Event]:
    """Return a completion's events from a running daemon or from an engine in this process."""
    local = options.local or any(getattr(options, name) is not None for name in SETTINGS)
    found = "" if local else _find_daemon(options)
    if isinstance(found, Address):
        return _events(found, request)
    choice = choose_config(options, **(PLAIN if options.no_speculation else {}))
    if found:
        say(f"loading the models here: {found}")
    return load_and_complete(choice.config, request)


def _find_daemon(options: argparse.Namespace) -> Address | str:
    """Return the address of a usable daemon, or the reason why no daemon is usable ("": print no reason).

    Waits for a daemon that is loading its models: loading them here too would take as long, and double the memory use.
    """
    try:
        address = find_address(options)
        found = address.look()
        if found.daemon.get("state") == "starting":
            say(f"waiting for the daemon at {address.url} ({found.daemon['reason']})")
        while found.daemon.get("state") == "starting":
            time.sleep(POLL_INTERVAL_S)
            found = address.look()
    except ConfigError as error:
        return f"no daemon can be used ({error.fault.clause})"
    if found.who == "nobody":
        hint = "no daemon is running; `codespec serve` starts a daemon that keeps them loaded"
        return hint if sys.stderr.isatty() else ""
    state = REFUSALS[found.who] if found.who != "daemon" else f"is {found.daemon['state']}"
    if state not in ("is ready", "is idle"):
        return f"the daemon at {address.url} can't be used (it {state})"
    say(*found.daemon["notes"])
    return address


def _events(address: Address, request: CompletionRequest) -> Iterator[Event]:
    """Yield a completion's events from a daemon. Raises RequestError for HTTP 400, DaemonError for other failures."""
    text = ""
    try:
        for name, value in address.stream(_body(request), SECONDS):
            event = event_from_json(name, value, text)
            if isinstance(event, TextEvent):
                text += event.text
            if event is not None:
                yield event
    except DaemonError as error:
        if error.status == 400:
            raise RequestError(error.fault) from error
        raise


def _body(request: CompletionRequest) -> dict[str, Any]:
    """Build a request's JSON body, with no more text around the cursor than a daemon accepts."""
    body: dict[str, Any] = {
        "prefix": request.prefix[-MAX_SIDE:],
        "suffix": request.suffix[:MAX_SIDE],
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
    return body


def why_empty(done: Completion) -> list[str]:
    """Return a list with the reason for an empty completion; [] if the completion has text."""
    if done.text.strip():
        return []
    return [f"there is nothing to add here ({done.stats.ended or 'the model ended its text at once'})"]


def load_and_complete(config: EngineConfig, request: CompletionRequest) -> Iterator[Event]:
    """Load an engine and yield a completion's events. The engine's notes are not printed for a refused request."""
    engine, printed = load_engine(config), 0
    for event in engine.stream(request):
        if not printed:
            say(*engine.notes)
            printed = len(engine.notes)
        yield event
    printed = len(engine.notes)
    engine.close()
    say(*engine.notes[printed:])


def read_request(options: argparse.Namespace) -> CompletionRequest:
    """Build the completion request. Raises RequestError for an invalid position or option, or an unreadable file."""
    if options.max_tokens == 0:
        raise RequestError("--max-tokens 0 would generate nothing: choose 1 or more.", "max_tokens")
    file, line, column = parse_place(options.place)
    prefix, suffix = split_at(read_source(file), line, column)
    return CompletionRequest(
        prefix=prefix,
        suffix=suffix,
        path=file.name,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        shape=options.shape,
        heal=not options.no_heal,
        speculate=False if options.no_speculation else None,
    )


def parse_place(place: str) -> tuple[Path, int, int]:
    """Parse FILE:LINE:COL, where FILE may contain colons. Raises RequestError if the format is invalid."""
    match = re.fullmatch(r"(.+):([0-9]{1,18}):([0-9]{1,18})", place, re.DOTALL)
    if not match:
        raise RequestError(f"{place!r} is not of the form FILE:LINE:COL: write, for example, src/app.py:12:8.", "place")
    return Path(match.group(1)), int(match.group(2)), int(match.group(3))


def read_source(file: Path) -> str:
    """Return the file's text with unchanged line endings and no byte-order mark. Raises RequestError."""
    try:
        text = decode_text(read_named(file))
    except OSError as error:
        raise RequestError(f"{file} can't be read ({error.strerror or error}): check the path.", "place") from error
    except NotUtf8 as error:
        raise RequestError(f"{file} is not UTF-8 text ({error}): convert the file to UTF-8.", "place") from error
    if "\0" in text:
        raise RequestError(f"{file} is binary (a NUL at character {text.index(chr(0))}): choose a text file.", "place")
    return text


def split_at(text: str, line: int, column: int) -> tuple[str, str]:
    """Return the text before and after a position. Raises RequestError if the position is outside the file."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        raise RequestError(f"Line {line} is outside the file: choose a line from 1 to {len(lines)}.", "place")
    length = len(lines[line - 1].removesuffix("\r"))
    if not 1 <= column <= length + 1:
        raise RequestError(f"Column {column} is outside line {line}: choose a column from 1 to {length + 1}.", "place")
    offset = sum(len(part) + 1 for part in lines[: line - 1]) + column - 1
    return text[:offset], text[offset:]


class Painter:
    """Writes a completion as it arrives, and marks the text that the target accepted or rejected.

    With colour, accepted text is green, and rejected text is red and struck through. Without colour, accepted text is
    in [brackets] and rejected text between -hyphens-.
    """

    def __init__(self, out: TextIO, colour: bool) -> None:
        self.out = out
        self.colour = colour
        self._rounds: list[RoundEvent] = []

    def plain(self, text: str) -> None:
        """Write text and flush the stream."""
        self.out.write(text)
        self.out.flush()

    def round(self, event: RoundEvent) -> None:
        """Write a round's accepted text, its rejected text and the text that the target added."""
        self._rounds.append(event)
        rejected = event.draft.removeprefix(event.accepted_text) if event.accepted < event.drafted else ""
        if event.accepted_text:
            self.plain(f"{ACCEPTED}{event.accepted_text}{RESET}" if self.colour else f"[{event.accepted_text}]")
        if rejected:
            flat = rejected.replace("\r", "\\r").replace("\n", "\\n")  # rejected text must not break the line
            self.plain(f"{REJECTED}{flat}{RESET}" if self.colour else f"-{flat}-")
        self.plain(event.target_text)

    def why(self) -> None:
        """For each round, write the counts of accepted and drafted tokens and the reason for the draft length."""
        self._faint("step  accepted/drafted tokens, and the reason for the draft's length")
        for number, event in enumerate(self._rounds, 1):
            self._faint(f"{number:3}  {event.accepted}/{event.drafted}  {event.reason or 'no draft'}")

    def summary(self, done: Completion) -> None:
        """Write a line with a completion's counts of tokens, rounds and accepted drafts, and the duration."""
        stats = done.stats
        by = ", ".join(f"{name} {c.accepted}/{c.drafted}" for name, c in sorted(stats.by_source.items()))
        accepted = f"{stats.accepted} of {stats.drafted} drafted accepted, {stats.total_ms:.0f} ms"
        self._faint(f"{stats.committed} tokens in {stats.rounds} rounds, {accepted}{f' ({by})' if by else ''}")

    def _faint(self, line: str) -> None:
        self.plain(f"{FAINT}{line}{RESET}\n" if self.colour else f"{line}\n")
