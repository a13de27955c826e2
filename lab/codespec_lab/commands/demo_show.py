"""Show completions as an editor would request them, marking drafted and accepted text, for `make demo`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from codespec.cli.complete import FAINT, RESET, Painter
from codespec.contract.types import CompletionRequest, DoneEvent, RoundEvent
from codespec_lab.bench.definitions import read_definitions
from codespec_lab.bench.sites import CHECKOUT

if TYPE_CHECKING:
    from codespec.engine.engine import Engine
    from codespec_lab.bench.sites import Site

ABOVE = 4  # lines
WIDTH = 78
MOST_REJECTED = 16  # characters: longer rejected drafts would hide the final text


def show(engine: Engine, places: Sequence[Site], tokens: int) -> None:
    """Print each place: a few lines above the cursor, the completion as it streams, the first line below."""
    painter = Painter(sys.stdout, colour=sys.stdout.isatty())
    if painter.colour:
        painter.plain("green: guessed and accepted; red: guessed and rejected; plain: the target's own\n\n")
    else:
        painter.plain("[brackets]: guessed and accepted; plain: the target's own\n\n")
    for place in places:
        _show_place(engine, place, tokens, painter)


def _show_place(engine: Engine, place: Site, tokens: int, painter: Painter) -> None:
    painter.plain(f"── {place.name} ".ljust(WIDTH, "─") + "\n")
    _show_file("".join(place.prefix.splitlines(keepends=True)[-ABOVE:]), painter)
    painter.plain("⟨")
    for event in engine.stream(_as_editor(place, tokens)):
        if isinstance(event, RoundEvent):
            painter.round(_shortened(event, painter.colour))
        elif isinstance(event, DoneEvent):
            painter.plain("⟩\n")
            _show_file(next((f"{line}\n" for line in place.suffix.splitlines() if line.strip()), ""), painter)
            painter.summary(event.completion)
    painter.plain("\n")


def _show_file(text: str, painter: Painter) -> None:
    """Print text of the file, fainter than the completion."""
    painter.plain(f"{FAINT}{text}{RESET}" if painter.colour else text)


def _shortened(event: RoundEvent, colour: bool) -> RoundEvent:
    """Shorten the rejected part of the draft; without colours, which mark it, remove the draft."""
    shown = len(event.accepted_text) + MOST_REJECTED
    return replace(event, draft=event.draft[:shown] if colour else "")


def _as_editor(place: Site, tokens: int) -> CompletionRequest:
    """Return an editor's request, not with shape `auto`: it starts nothing inside a word, as many places are."""
    text = place.prefix + place.suffix
    return CompletionRequest(
        prefix=place.prefix,
        suffix=place.suffix,
        path=place.path,
        max_tokens=tokens,
        shape="block",
        heal=True,
        snippets=read_definitions(text, CHECKOUT / place.path, CHECKOUT),
    )
