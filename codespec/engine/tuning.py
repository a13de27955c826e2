"""What follows from the cost of rounds on this machine: CPU threads, the longest draft, rows of a prompt at once,
requests at once. Knows what was measured and the bounds of the settings; knows no requests.

Where a product of 32 rows costs what one costs (AMX, a GPU) long drafts, large chunks and full batches pay; where a
row's arithmetic counts they do not. So nothing here is chosen by a processor's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableSequence
from dataclasses import dataclass
from typing import Any

from codespec import json_store
from codespec.config import EngineConfig
from codespec.engine.fingerprint import fingerprint
from codespec.models.language_model import LanguageModel
from codespec.models.processor import processor
from codespec.models.timing import SHORT, choose_threads
from codespec.speculation.cost_model import CostTable
from codespec.user_folders import cache_folder

USUAL_BATCH, USUAL_CHUNK, USUAL_DRAFT = 8, 256, 16  # where nothing was measured
MOST_BATCH, MOST_CHUNK, LEAST_CHUNK = 16, 512, 64
BATCH_MB = 512  # for the keys and values of more requests at once than usual
STALL = 0.2  # seconds by which a chunk of one prompt may hold up the others' streams
PAYS = 0.8  # of a token's cost, by twice as many requests at once
FREE = 1.5  # of one row's cost, up to which so many rows cost little
KIND = 1  # how threads are chosen: what another kind chose is not read
_CHOSEN: list[int] = []  # by this process


@dataclass(frozen=True, slots=True)
class Tuning:
    """What an engine goes by, within its settings."""

    batch: int
    chunk: int


def tune(config: EngineConfig, costs: CostTable | None, slots: int) -> Tuning:
    """The settings that were left open, by what rounds cost; the usual ones where that was not measured."""
    if costs is None:
        return Tuning(config.max_batch or min(USUAL_BATCH, slots), config.prefill_chunk or USUAL_CHUNK)
    return Tuning(config.max_batch or _batch(costs, slots), config.prefill_chunk or _chunk(costs))


def longest_draft(most: int, costs: CostTable | None, tile: int = 0) -> int:
    """The longest draft, `most` at most: beyond the usual where a verify of it costs little more than one row. Its
    rows fill products of `tile` rows (0: any number).
    """
    longest = _fills_tiles(most, tile)
    if costs is not None and costs.target.seconds(longest + 1) <= FREE * costs.target.seconds(1):
        return longest
    return min(most, USUAL_DRAFT)


def longest_prediction(most: int, tile: int = 0) -> int:
    """The longest draft from a client's own prediction: twice `most`, whole tiles of rows, because it is right for many
    tokens on end or soon known to be wrong. What is worth its rows, the policy weighs.
    """
    return _fills_tiles(2 * most, tile)


def largest_batch(config: EngineConfig, slot_bytes: int) -> int:
    """How many requests may run at once, as far as memory goes: what is asked for, or what is worth measuring."""
    if config.max_batch:
        return config.max_batch
    room = (config.cache_mb or BATCH_MB) * 2**20
    return MOST_BATCH if MOST_BATCH * slot_bytes <= room else USUAL_BATCH


def _fills_tiles(draft: int, tile: int) -> int:
    """The longest draft up to `draft` whose rows, the committed token's included, fill whole tiles; at least one."""
    if not tile or draft + 1 < tile:
        return draft
    return (draft + 1) // tile * tile - 1


def _batch(costs: CostTable, slots: int) -> int:
    batch = min(USUAL_BATCH, slots)
    while 2 * batch <= min(MOST_BATCH, slots):
        one, twice = (costs.plain(size, SHORT) / size for size in (batch, 2 * batch))
        if twice > PAYS * one:
            break
        batch *= 2
    return batch


def _chunk(costs: CostTable) -> int:
    chunk = MOST_CHUNK
    while chunk > LEAST_CHUNK and costs.target.seconds(chunk) > STALL:
        chunk //= 2
    return chunk


def find_threads(model: LanguageModel, notes: MutableSequence[str]) -> int:
    """The number of CPU threads that is kept for this model here, or the one that is measured now and kept. They are
    the process's, so its first engine that is not told chooses for the others. Slots must be free.
    """
    if not _CHOSEN:
        _CHOSEN.append(_kept_threads(model, notes))
    return _CHOSEN[0]


def _kept_threads(model: LanguageModel, notes: MutableSequence[str]) -> int:
    most = _most_threads()
    if most == 1:
        return 1
    file = cache_folder() / "threads" / f"{fingerprint(KIND, most, model.spec, sorted(model.shapes.items()))}.json"
    kept_threads = json_store.load(file, _threads, "the kept number of threads", "it is measured again", notes)
    if kept_threads is not None and 1 <= kept_threads <= most:
        return kept_threads
    threads = choose_threads(model, most)
    json_store.keep(file, {"threads": threads}, "the number of threads", "", notes)
    return threads


def _threads(content: Mapping[str, Any]) -> int:
    return int(content["threads"])


def _most_threads() -> int:
    """The physical cores, or fewer where OMP_NUM_THREADS says so: who sets that shares the machine."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(processor().cores, int(told)) if told.isdecimal() and int(told) else processor().cores
