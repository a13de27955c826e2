"""Score whether suggestions appear, and in which shape, at places in code with human verdicts.

`python -m tools.manners` runs each place through the language server's own session. A fake daemon ends texts as the
real one does. Its target writes the text of the place and then ten more lines, so no model is needed. With --url, the
model of a running daemon writes instead, without a time limit. Held-out places are counted separately, and their
mistakes are never shown.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec_grammars import Context, Cursor, read_surroundings
from codespec_lsp.daemon import Daemon, Daemons
from codespec_lsp.session import Session
from codespec_lsp.settings import EditorSettings
from codespec_lsp.status import StatusLine
from lsprotocol import types

from codespec.client.connections import ProvenConnections
from codespec.client.daemon_client import DaemonClient, RawEvent
from codespec.client.starter import Starter
from codespec.text.ending import Ending
from codespec.user_folders import read_token

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "lsp" / "manners" / "places"
SHAPES = ("nothing", "line", "block")
MAX_MS = 60_000  # for a suggestion
MAX_LINES = 12  # a longer block is a wall of text
SUFFIXES = {"javascript": "js", "typescript": "ts", "python": "py", "rust": "rs", "ruby": "rb", "c_sharp": "cs"}
IDS = {"bash": "shellscript", "c_sharp": "csharp"}
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
GOES_ON = {  # a plausible next line of a target, by language
    **dict.fromkeys(("python", "ruby", "lua", "go", "html"), "go_on_{}(first)"),
    **dict.fromkeys(("bash",), "go-on-{} first"),
    **dict.fromkeys(("json",), '"go_on_{}": 1,'),
}
_HEAD = re.compile(r"#### (held-out )?(\w+) (nothing|line|block): (.+)")


@dataclass(frozen=True, slots=True)
class Place:
    """A cursor between `before` and `after`, with a programmer's verdict on the right suggestion.

    The target writes `kept` and `dropped`; a programmer keeps `kept`.
    """

    language: str
    subject: str
    shape: str
    why: str
    before: str
    after: str
    kept: str
    dropped: str
    held_out: bool

    def __str__(self) -> str:
        return f"{self.language}, {self.subject}: {self.why}"

    @property
    def message(self) -> str:
        """Output of the target: the place's text, followed by ten more lines."""
        line = self.before.rpartition("\n")[2]
        indent = "" if self.shape == "block" else line[: len(line) - len(line.lstrip())]
        form = GOES_ON.get(self.language, "go_on_{}(first);")
        return self.kept + self.dropped + "".join(f"\n{indent}{form.format(number)}" for number in NUMBERS) + "\n"


@dataclass(frozen=True, slots=True)
class Judged:
    """The suggestion at a place."""

    place: Place
    shown: str

    @property
    def lines(self) -> int:
        """Number of non-blank lines."""
        return sum(bool(line.strip()) for line in self.shown.split("\n"))

    @property
    def shape(self) -> str:
        """The shape: nothing, line or block."""
        return "nothing" if not self.shown.strip() else "block" if "\n" in self.shown.strip() else "line"

    @property
    def shape_is_right(self) -> bool:
        """Whether it has the shape that a programmer wants, and at most MAX_LINES lines."""
        return self.shape == self.place.shape and self.lines <= MAX_LINES

    @property
    def text_is_right(self) -> bool:
        """Whether it is exactly the text that a programmer keeps."""
        return self.shown == self.place.kept


def read_places(folder: Path = FOLDER) -> list[Place]:
    """Return all places, by language."""
    return [place for path in sorted(folder.glob("*.txt")) for place in _places(path)]


def _places(path: Path) -> Iterable[Place]:
    for part in re.split(r"^(?=#### )", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        head, _, code = part.partition("\n")
        found = _HEAD.fullmatch(head)
        if found is None or code.count("⟦") != 1 or code.count("⟧") != 1:
            raise ValueError(
                f"{path.name}: {head!r} is not a valid place: give it a subject, a shape, a reason and one ⟦⟧."
            )
        held_out, subject, shape, why = found.groups()
        before, _, rest = code.partition("⟦")
        message, _, after = rest.partition("⟧")
        kept, _, dropped = message.partition("¦") if shape != "nothing" else ("", "", message)
        yield Place(path.stem, subject, shape, why, before, after, kept, dropped, bool(held_out))


class ForcedClient(DaemonClient):
    """The client of a fake daemon that answers every request with one text, ended as the daemon ends texts."""

    def __init__(self, text: str) -> None:
        super().__init__(ProvenConnections("http://127.0.0.1:1", ""))
        self.text = text
        self.requests: list[Mapping[str, Any]] = []

    async def events(
        self, body: Mapping[str, Any], _session: str = "", _path: str = ""
    ) -> AsyncGenerator[RawEvent, None]:
        """Yield the text up to its end, in one event."""
        self.requests.append(body)
        language = {id_: name for name, id_ in IDS.items()}.get(body["language"], body["language"])
        prefix, suffix = body["prefix"], body["suffix"]
        sent = {**body["cursor"], "context": Context(body["cursor"]["context"])}
        place = read_surroundings(language, prefix.encode(), suffix.encode(), sent=Cursor(**sent))
        ending = Ending(body.get("shape", "auto"), place, prefix, suffix)
        data = self.text.encode()
        if not ending.idle:
            ending.advance(data)
            ending.finish()
            yield "text", {"choice": 0, "text": data[: ending.cut].decode()}
        yield "done", {"choice": 0, "finish_reason": "stop", "stats": {}}

    async def send_files(self, body: Mapping[str, Any], _session: str = "") -> None:
        """Do nothing: the fake daemon copies from no files."""


class OneDaemon(Daemons):
    """A daemon that runs already, whatever the settings are."""

    def __init__(self, client: DaemonClient) -> None:
        super().__init__()
        self._running = client, Starter(client, None, port=1)

    def find(self, settings: EditorSettings) -> tuple[DaemonClient, Starter]:
        """Return the client, and a starter that starts no other daemon."""
        return self._running


def new_session(client: DaemonClient) -> Session:
    """Return a client's session in front of a daemon."""
    daemon = Daemon(OneDaemon(client), lambda state, message: None)
    status = StatusLine(lambda params: None, lambda message: None)
    return Session(daemon, status, lambda document: False, lambda sentence: None)


def uri_of(place: Place, number: int = 0) -> tuple[str, str]:
    """Return the URI of a place's document, which `number` makes unique, and its language id."""
    uri = f"file:///places/{number}/place.{SUFFIXES.get(place.language, place.language)}"
    return uri, IDS.get(place.language, place.language)


async def suggest(place: Place, client: DaemonClient, number: int = 0) -> Judged:
    """Return the language server's suggestion at a place. `number` makes the document's URI unique."""
    session = new_session(client)
    session.use(EditorSettings(budget_ms=MAX_MS))
    uri, language = uri_of(place, number)
    session.opened({"uri": uri, "languageId": language, "version": 1, "text": place.before + place.after})
    row, column = place.before.count("\n"), len(place.before.rpartition("\n")[2])
    request = session.receive(uri, types.Position(row, column), explicit=False)
    suggestions = await session.answer(request) if request is not None else []
    await session.close()
    return Judged(place, suggestions[0].shown if suggestions else "")


def judge(places: Sequence[Place], url: str = "") -> list[Judged]:
    """Return the suggestions at all places, from the daemon at `url` or, if it is "", from the fake daemon."""

    async def all_of_them() -> list[Judged]:
        if not url:
            return [await suggest(place, ForcedClient(place.message)) for place in places]
        client = DaemonClient(ProvenConnections(url, read_token("")))
        judged = [await suggest(place, client, number) for number, place in enumerate(places)]
        await client.close()
        return judged

    return asyncio.run(all_of_them())


def share(judged: Sequence[Judged]) -> float:
    """Return the share of places with the right shape."""
    return sum(each.shape_is_right for each in judged) / len(judged)


def table(judged: Sequence[Judged]) -> str:
    """Return the score by shape and by subject as a Markdown table, with separate columns for held-out places."""
    rows = ["| places | shape right | text right | held out: shape | held out: text |", "|---|---|---|---|---|"]
    subjects = list(dict.fromkeys(each.place.subject for each in judged))
    for name in ("all", *SHAPES, *subjects):
        chosen = [each for each in judged if name in ("all", each.place.shape, each.place.subject)]
        tuned = [each for each in chosen if not each.place.held_out]
        held_out = [each for each in chosen if each.place.held_out]
        rows.append(f"| {name} | {' | '.join((*_shares(tuned), *_shares(held_out)))} |")
    return "\n".join(rows)


def _shares(judged: Sequence[Judged]) -> tuple[str, str]:
    of = len(judged)
    return f"{sum(each.shape_is_right for each in judged)} of {of}", f"{sum(e.text_is_right for e in judged)} of {of}"


def _named(judged: Judged) -> str:
    """Return a suggestion, or the digest of one at a held-out place."""
    held_out = judged.place.held_out
    return hashlib.sha256(judged.shown.encode()).hexdigest()[:16] if held_out else judged.shown


def main() -> None:
    """Print the score table, and with --wrong the mistakes at places that are not held out."""
    parser = argparse.ArgumentParser(prog="python -m tools.manners", description=main.__doc__)
    parser.add_argument("--wrong", action="store_true", help="show the mistakes; never those at held-out places")
    parser.add_argument("--url", default="", help="use the model of a running daemon (default: the text of the place)")
    parser.add_argument(
        "--json", type=Path, help="write the suggestions to this file, or their digests for held-out places"
    )
    options = parser.parse_args()
    judged = judge(read_places(), options.url)
    if options.json:
        shown = {f"{number}: {each.place}": _named(each) for number, each in enumerate(judged)}
        options.json.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.wrong:
        for each in judged:
            if not each.text_is_right and not each.place.held_out:
                wanted = f"{each.place.shape} {json.dumps(each.place.kept, ensure_ascii=False)}"
                print(f"{each.place}\n  wanted {wanted}\n  got {each.shape} {json.dumps(each.shown)}")
    print(table(judged))


if __name__ == "__main__":
    main()
