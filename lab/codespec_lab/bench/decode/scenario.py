"""`codespec bench decode`: codespec and its peers decode the same prompts with the same model in one run.

Calibrate all contestants, then repeat every cell (sampling × concurrency) with the contestants in turn. Each pass is
written to the results file at once, and a later run of the same command continues from there.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers

from codespec import __version__
from codespec.api.config import EngineConfig
from codespec.backends.torch.loader import find_device
from codespec.engine.admission import Admission
from codespec.files import read_json
from codespec.store.conversions import source_quantization
from codespec.store.machine import processor
from codespec.store.resolve import resolve
from codespec_lab.bench.decode.codespec_engine import OFF, OwnFamily, OwnModels, table_name
from codespec_lab.bench.decode.contest import Cell, Family, Variant, Workload, count_kinds, make_tasks, thread_counts
from codespec_lab.bench.decode.hugging_face import TransformersFamily, TransformersModels
from codespec_lab.bench.decode.llama_cpp import LlamaFamily
from codespec_lab.bench.decode.passes import LATE, MANY, Lineup, References, calibrate, run_pass
from codespec_lab.bench.decode.summary import mismatches, report, summarize
from codespec_lab.bench.harness import Deadline, Results, Scenario, commit_name
from codespec_lab.bench.pair import Pair
from codespec_lab.bench.settings import DecodeBench
from codespec_lab.bench.sites import Site, digest, mixed_sites
from codespec_lab.progress import ProgressBar


def run_decode_bench(bench: DecodeBench) -> dict[str, Any]:
    """Return all figures so far as plain JSON values. Progress goes to stderr."""
    device, drafter = bench.config.device, bench.config.drafter_device
    device, drafter = (named if named == "same" else str(find_device(named)) for named in (device, drafter))
    bench = replace(bench, config=replace(bench.config, device=device, drafter_device=drafter))
    results = Results(bench.file, "decode")
    sites, note = mixed_sites(bench.held_out, bench.prompts)
    models = OwnModels(bench.config, max(MANY, *bench.concurrency), bench.dtype, bench.drafter_dtype)
    section = results.section(bench.target_shape, _configuration(bench, models, sites))
    contest = Contest(bench, models, results, section, sites)
    try:
        contest.prepare()
        contest.run()
    finally:  # also when the user interrupts it: the finished passes are kept with their summary
        contest.close()
        section["note"] = "; ".join(dict.fromkeys(filter(None, [note, *contest.models.notes])))
        for measured in results.values["sections"].values():
            if measured["passes"]:
                measured["summary"] = summarize(measured)
        results.write()
    return results.values


class Contest:
    """One section of the results, filled as the passes run."""

    def __init__(
        self, bench: DecodeBench, models: OwnModels, results: Results, section: dict[str, Any], sites: Sequence[Site]
    ) -> None:
        self.bench, self.models, self.results, self.section = bench, models, results, section
        self.deadline = Deadline(bench.minutes)
        pair = self.models.pair(self._first_variant())
        self.token_bytes = pair.target.token_bytes
        count = max(bench.limit, *(cell.size for cell in _cells(bench)))
        self.tasks, self.ends = make_tasks(Admission(pair.target, pair.context), sites[:count], bench.tokens)
        room = max(len(task.ids) for task in self.tasks) + bench.tokens
        peers: list[Family] = [
            TransformersFamily(TransformersModels(bench.config, pair.shares_ids)),
            LlamaFamily(bench.config, self.models.slots, room, bench.llama_cpp),
        ]
        self.lineup = Lineup([OwnFamily(self.models), *(peer for peer in peers if peer.name in bench.peers)])
        section["pair"] = _facts(bench.config, pair)
        section["prompts"] = dict(count_kinds(self.tasks[: bench.limit]))

    def prepare(self) -> None:
        """Calibrate what no earlier run has calibrated, in half of the time at most, and keep each result."""
        known, bench = self.section.setdefault("contestants", {}), self.bench
        for name in [name for name, found in known.items() if found.get("absent") == LATE]:
            del known[name]
        self.lineup.absent = {name: found["absent"] for name, found in known.items() if "absent" in found}
        self.lineup.fastest = {
            name: {size: Variant(**values) for size, values in found["fastest"].items()}
            for name, found in known.items()
            if "fastest" in found
        }
        progress = ProgressBar("calibrate", sum(len(family.contestants) for family in self.lineup.families))
        deadline = Deadline(bench.minutes / 2 if bench.minutes else None)
        for contestant, measured in calibrate(self.lineup, self.tasks, max(bench.concurrency) > 1, deadline):
            fastest, name = self.lineup.fastest.get(contestant.name), contestant.name
            if fastest and name not in self.lineup.absent and measured:
                before = known.get(name, {"calibration": []})["calibration"]
                known[name] = {
                    "family": contestant.family,
                    "plain": contestant.plain,
                    "batched": contestant.batched,
                    "fastest": {size: variant.as_dict() for size, variant in fastest.items()},
                    "settings": contestant.facts(fastest["one"]),
                    "calibration": before + measured,
                }
                self.results.write()
            progress.advance()
        known |= {name: {"absent": reason} for name, reason in self.lineup.absent.items()}
        self.results.write()

    def run(self) -> None:
        """Run the missing passes while there is time."""
        missing = self._missing()
        progress = ProgressBar("measure", sum(len(workloads) for _, _, workloads in missing))
        references = References(self.lineup, self.token_bytes)
        for cell, repeat, workloads in missing:
            begun = time.monotonic()
            if self.deadline.too_late(self._expected_seconds(cell)):
                break
            self.section["costs"] = self._measured_costs(cell)
            records = run_pass(self.lineup, references, self.models, repeat, workloads, progress.advance)
            self.section["passes"].append(
                {
                    "sampling": cell.sampling,
                    "concurrency": cell.concurrency,
                    "repeat": repeat,
                    "date": date.today().isoformat(),
                    "commit": commit_name(),
                    "seconds": time.monotonic() - begun,
                    "records": records,
                }
            )
            self.results.write()

    def close(self) -> None:
        """Stop the peers' processes."""
        for family in self.lineup.families:
            family.close()

    def _measured_costs(self, cell: Cell) -> dict[str, Any]:
        """Measure the cost tables of a pass, by variant. On a shared machine costs change from pass to pass."""
        names = [c.name for c in self.lineup.families[0].contestants if c.name in self.lineup.fastest]
        used = {self.lineup.variant(name, cell.concurrency) for name in names}
        self.models.measure(used)
        return {table_name(variant): asdict(self.models.table(variant)) for variant in used}

    def _first_variant(self) -> Variant:
        """Return the fastest variant of plain decoding, or one with the first format before calibration."""
        known = self.section.get("contestants", {}).get(OFF, {}).get("fastest")
        plain = Variant(**known["one"]) if known else Variant(self.models.formats[0])
        return replace(plain, drafter_dtype=self.models.drafter_formats[0] if self.models.has_drafter else "")

    def _missing(self) -> list[tuple[Cell, int, list[Workload]]]:
        """Return the missing passes: every cell once, then every cell again, so that a short run covers all cells."""
        done = {(p["sampling"], p["concurrency"], p["repeat"]) for p in self.section["passes"]}
        bench, found = self.bench, []
        for repeat, cell in product(range(bench.repeats), _cells(bench)):
            workloads = cell.workloads(self.tasks, bench.limit, bench.tokens, self.ends)
            if workloads and (cell.sampling, cell.concurrency, repeat) not in done:
                found.append((cell, repeat, workloads))
        return found

    def _expected_seconds(self, cell: Cell) -> float:
        """Return the seconds of the cell's last pass; 0 if there is none."""
        same = [
            p for p in self.section["passes"] if (p["sampling"], p["concurrency"]) == (cell.sampling, cell.concurrency)
        ]
        return float(same[-1]["seconds"]) if same else 0.0


def _cells(bench: DecodeBench) -> list[Cell]:
    """Return all comparisons, in order."""
    return [Cell(*found) for found in product(bench.samplings, bench.concurrency)]


def _facts(config: EngineConfig, pair: Pair) -> dict[str, Any]:
    """Return the pair's facts, and the format of the GGUF file that weights were read from."""
    facts = pair.facts()
    for role, name in (("target", config.target), ("drafter", config.drafter)):
        if role in facts:
            facts[role]["stored"] = source_quantization(read_json(resolve(name).folder() / "config.json"))
    return facts


def _configuration(bench: DecodeBench, models: OwnModels, sites: Sequence[Site]) -> dict[str, Any]:
    """Return the settings that comparable figures must share; a later run may add repeats and cells."""
    config = bench.config
    return {
        "weights": _weights(models),
        "formats": {"target": list(models.formats), "drafter": list(models.drafter_formats)},
        "policy": config.policy,
        "caps": config.caps,
        "draft_tokens": config.draft_tokens,
        "warmup": config.warmup,
        "context": config.context,
        "drafter_device": config.drafter_device,
        "graph_rows": config.graph_rows,
        "prompts": digest(sites),
        "prompts of a cell": bench.limit,
        "tokens": bench.tokens,
        "machine": {**_machine(config.device), "threads": list(thread_counts(config.device))},
        "versions": {
            "codespec": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def _weights(models: OwnModels) -> dict[str, str]:
    """Return the models' names, each with a digest of its weights in the first format to try."""
    config = models.config
    found = {"target": _digest(config.target, resolve(config.target).open(models.formats[0]).path)}
    if not models.has_drafter:
        return found | {"drafter": config.drafter}
    return found | {"drafter": _digest(config.drafter, resolve(config.drafter).open(models.drafter_formats[0]).path)}


def _digest(name: str, folder: Path) -> str:
    """Return the last part of a model's name and a digest of a folder's weights, or of a file."""
    found = hashlib.blake2b(digest_size=8)
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]:
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "blake2b").digest())
    return f"{name.rstrip('/').rpartition('/')[2]} {found.hexdigest()}"


def _machine(device: str) -> dict[str, str]:
    """Return the hardware and system, with the processor also for a GPU, since it launches the GPU's work."""
    found = {"processor": processor().label, "system": platform.platform()}
    return found if device == "cpu" else {**found, "gpu": torch.cuda.get_device_name(device)}


SCENARIO = Scenario(run_decode_bench, report, mismatches)
