"""`codespec bench decode`: codespec and its peers decode the same prompts with the same weights in one run.

Calibrates everybody, chooses prompts, then repeats every cell (how tokens are chosen × how many prompts at once) with
all contestants in turn. Everything found is written at once, and a later run of the same command goes on from there.
Knows the order of things; the parts know how.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers

from codespec import __version__
from codespec.bench.decode_acceptance import measure_acceptance
from codespec.bench.decode_grid import FULL, SAMPLINGS, SMALL, Cell, Grid
from codespec.bench.decode_passes import MANY, Lineup, References, calibrate, run_pass
from codespec.bench.decode_prompts import Chosen, Place, choose_tasks, digest, find_places, first_tasks, rebuild_tasks
from codespec.bench.decode_sheet import Sheet, commit_name
from codespec.bench.decode_summary import summarize
from codespec.bench.peers.contest import Family, Variant, Work, formats, thread_counts
from codespec.bench.peers.hugging_face import PeerFamily, PeerModels
from codespec.bench.peers.llama_cpp import LlamaFamily
from codespec.bench.peers.ours import NEVER_RIGHT, OFF, Own, OwnFamily, OwnModels, table_name
from codespec.config import EngineConfig
from codespec.models.loader import find_device
from codespec.models.processor import processor
from codespec.pair.folder import find_folder
from codespec.training.progress import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBench:
    """What is asked for; the grid fills in what is None. No pass is begun that would end behind so many `minutes`."""

    config: EngineConfig
    held_out: Path | None = None
    prompts: Path | None = None
    file: Path | None = None
    limit: int | None = None
    tokens: int | None = None
    concurrency: tuple[int, ...] | None = None
    samplings: tuple[str, ...] | None = None
    repeats: int = 5
    minutes: float | None = None

    @property
    def grid(self) -> Grid:
        """The whole grid for a pair as it is, a small one for an enlarged target."""
        grid = FULL if self.config.target_shape == "own" else SMALL
        asked = {name: getattr(self, name) for name in ("limit", "tokens", "concurrency", "samplings")}
        asked["fewer"] = self.limit
        return replace(grid, **{name: value for name, value in asked.items() if value is not None})


def run_decode_bench(bench: DecodeBench) -> dict[str, Any]:
    """Everything that is known now, as plain JSON values. Progress goes to stderr."""
    device, drafter = bench.config.device, bench.config.drafter_device
    device, drafter = (named if named == "same" else str(find_device(named)) for named in (device, drafter))
    bench = replace(bench, config=replace(bench.config, device=device, drafter_device=drafter))
    sheet = Sheet(bench.file)
    places, note = find_places(bench.held_out, bench.prompts)
    section = sheet.section(bench.config.target_shape, _configuration(bench, places))
    section["note"] = note
    contest = Contest(bench, sheet, section, places)
    contest.prepare()
    contest.play()
    section["note"] = "; ".join(dict.fromkeys([note, *contest.small.notes, *contest.models.notes]))
    for measured in sheet.values["sections"].values():
        if measured["passes"]:
            measured["summary"] = summarize(measured)
    sheet.write()
    return sheet.values


class Contest:
    """One section of the sheet under way."""

    def __init__(self, bench: DecodeBench, sheet: Sheet, section: dict[str, Any], places: Sequence[Place]) -> None:
        self.bench, self.grid = bench, bench.grid
        self.sheet, self.section, self.places = sheet, section, places
        self.began = time.monotonic()
        slots = max(MANY, *self.grid.concurrency)
        self.models = OwnModels(bench.config, slots)
        # Prompts are chosen with the small target: the enlarged one writes the same, up to rounding, and takes minutes.
        self.small = OwnModels(replace(bench.config, target_shape="own"), slots)
        kinds = [formats(device)[0] for device in (bench.config.device, self.small.drafter_device)]
        pair = self.small.pair(Variant(kinds[0], kinds[1] if self.small.has_drafter else ""))
        self.token_bytes = pair.target.token_bytes
        self.lineup = Lineup(self._families(pair.shares_ids), self.grid.names)
        section["pair"] = pair.facts()

    def prepare(self) -> None:
        """Calibrates, or reads what an earlier run found."""
        known = self.section.get("contestants")
        if known is None:
            known = self._calibrated()
        self.lineup.absent = {name: found["absent"] for name, found in known.items() if "absent" in found}
        self.lineup.fastest = {
            name: {size: Variant(**values) for size, values in found["fastest"].items()}
            for name, found in known.items()
            if "fastest" in found
        }
        self.section["contestants"] = known
        self.sheet.write()

    def play(self) -> None:
        """Runs the passes that are not there yet, while there is time."""
        chosen = {sampling: self._chosen(sampling) for sampling in self.grid.samplings}
        self._count_acceptance(chosen)
        waiting = self._waiting(chosen)
        steps = Steps("measure", sum(len(work) for _, _, work in waiting))
        references = References(self.lineup, self.models, self.token_bytes)
        for cell, repeat, work in waiting:
            begun = time.monotonic()
            if self._late(cell):
                break
            names = [c.name for c in self.lineup.contestants if self.grid.takes_part(c.name, cell)]
            self.section["costs"] = costs = self._measured_costs(cell)
            records = run_pass(self.lineup, references, self.models, cell, repeat, work, names, steps.advance)
            self.section["passes"].append(
                {
                    "sampling": cell.sampling,
                    "concurrency": cell.concurrency,
                    "repeat": repeat,
                    "date": date.today().isoformat(),
                    "commit": commit_name(),
                    "seconds": time.monotonic() - begun,
                    "costs": costs,
                    "records": records,
                }
            )
            self.sheet.write()

    def _families(self, shared_vocabulary: bool) -> list[Family]:
        config = self.bench.config
        found: list[Family] = [OwnFamily(self.models), PeerFamily(PeerModels(config, shared_vocabulary))]
        return [*found, LlamaFamily(config, self.models.slots, self.grid.tokens)]

    def _calibrated(self) -> dict[str, Any]:
        steps = Steps("calibrate", len(self.lineup.contestants))
        tasks = first_tasks(self.small, self._small_variant(), self.places, MANY)
        measured = calibrate(self.lineup, tasks, self.grid, steps.advance)
        found: dict[str, Any] = {}
        for contestant in [c for family in self.lineup.families for c in family.contestants]:
            fastest = self.lineup.fastest.get(contestant.name)
            if fastest:
                found[contestant.name] = {
                    "family": contestant.family,
                    "plain": contestant.plain,
                    "batched": contestant.batched,
                    "fastest": {size: variant.as_dict() for size, variant in fastest.items()},
                    "settings": contestant.facts(fastest["one"]),
                    "calibration": measured[contestant.name],
                }
        return found | {name: {"absent": reason} for name, reason in self.lineup.absent.items() if reason}

    def _measured_costs(self, cell: Cell) -> dict[str, Any]:
        """What the rounds of a pass will cost, by variant: a machine that others share changes from pass to pass."""
        names = [c.name for c in self.lineup.families[0].contestants if c.name in self.lineup.fastest]
        used = {self.lineup.variant(n, cell.concurrency) for n in names if self.grid.takes_part(n, cell)}
        self.models.measure(used)
        return {table_name(variant): self.models.table(variant).as_dict() for variant in used}

    def _count_acceptance(self, chosen: Mapping[str, Chosen]) -> None:
        """What holds at fixed lengths, for the samplings of which it is not known yet."""
        running = [c for c in self.lineup.contestants if isinstance(c, Own) and c.sources and c.name != NEVER_RIGHT]
        variants = {contestant.name: self.lineup.variant(contestant.name, 1) for contestant in running}
        known = self.section.setdefault("acceptance", {})
        for sampling in (name for name in chosen if name not in known):
            tokens, advance = self.grid.tokens, Steps(f"acceptance {sampling}", len(running)).advance
            tasks, temperature = chosen[sampling].tasks, SAMPLINGS[sampling]
            known[sampling] = measure_acceptance(self.small, running, variants, tasks, tokens, temperature, advance)
            self.sheet.write()

    def _small_variant(self) -> Variant:
        fastest = self.lineup.fastest.get(OFF)
        return fastest["one"] if fastest else Variant(formats(self.bench.config.device)[0])

    def _chosen(self, sampling: str) -> Chosen:
        """The prompts of a sampling, chosen now or by an earlier run."""
        known, grid, variant = self.section.setdefault("prompts", {}), self.grid, self._small_variant()
        if sampling in known:
            return rebuild_tasks(self.small, variant, self.places, known[sampling], grid.extra)
        found = choose_tasks(
            self.small,
            variant,
            self.places,
            limit=grid.most(sampling),
            loops=grid.loops,
            extra=grid.extra,
            tokens=grid.tokens,
            temperature=SAMPLINGS[sampling],
            advance=Steps(f"prompts {sampling}", grid.most(sampling)).advance,
        )
        known[sampling] = found.facts()
        self.sheet.write()
        return found

    def _waiting(self, chosen: Mapping[str, Chosen]) -> list[tuple[Cell, int, list[Work]]]:
        """The passes to come: every cell once, then every cell again, so that little time covers all."""
        there = {(p["sampling"], p["concurrency"], p["repeat"]) for p in self.section["passes"]}
        found = []
        for repeat in range(self.bench.repeats):
            for cell in self.grid.cells:
                if (cell.sampling, cell.concurrency, repeat) not in there:
                    tasks = self.grid.batches(chosen[cell.sampling], cell)
                    work = [Work(batch, self.grid.tokens, cell.temperature, cell.concurrency) for batch in tasks]
                    found += [(cell, repeat, work)] if work else []
        return found

    def _late(self, cell: Cell) -> bool:
        """Whether another pass of a cell would take longer than there is time."""
        if self.bench.minutes is None:
            return False
        same = [
            p for p in self.section["passes"] if (p["sampling"], p["concurrency"]) == (cell.sampling, cell.concurrency)
        ]
        expected = same[-1]["seconds"] if same else 0.0
        return time.monotonic() - self.began + expected > 60 * self.bench.minutes


def _configuration(bench: DecodeBench, places: Sequence[Place]) -> dict[str, Any]:
    """What must be the same for figures to stand beside each other; repeats and cells may be added."""
    config, grid = bench.config, bench.grid
    models = {"target": config.target, "drafter": config.drafter}
    return {
        "weights": {role: _weights(name) for role, name in models.items()},
        "policy": config.policy,
        "caps": config.caps,
        "draft_tokens": config.draft_tokens,
        "warmup": config.warmup,
        "context": config.context,
        "drafter_device": config.drafter_device,
        "graph_rows": config.graph_rows,
        "prompts": digest(places),
        "prompts of a cell": [grid.limit, grid.fewer, grid.loops, grid.extra],
        "tokens": grid.tokens,
        "machine": {**_machine(config.device), "threads": list(thread_counts(config.device))},
        "versions": {
            "codespec": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def _weights(name: str) -> str:
    """A model's folder name and a digest of its weights."""
    if name == "none":
        return name
    found = hashlib.blake2b(digest_size=8)
    for file in sorted(find_folder(name).glob("*.safetensors")):
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "blake2b").digest())
    return f"{name.rstrip('/').rpartition('/')[2]} {found.hexdigest()}"


def _machine(device: str) -> dict[str, str]:
    """What computes; the processor launches a GPU's work, so it counts there too."""
    found = {"processor": processor().label, "system": platform.platform()}
    return found if device == "cpu" else {**found, "gpu": torch.cuda.get_device_name(device)}
