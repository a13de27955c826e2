"""Derive settings from measured costs: maximum draft length, prefill chunk and batch size.

If a 32-row product costs about as much as one row (AMX, GPUs), long drafts, large chunks and full batches pay off. If
arithmetic dominates, they do not. Therefore nothing is chosen by processor name.
"""

from __future__ import annotations

from dataclasses import dataclass

from codespec.contract.engine_config import EngineConfig
from codespec.speculation.cost_model import CostTable
from codespec.startup.timing import SHORT

USUAL_BATCH, USUAL_CHUNK, USUAL_DRAFT = 8, 256, 16  # without measurements
MOST_BATCH, MOST_CHUNK, LEAST_CHUNK = 16, 512, 64
BATCH_MB = 512  # KV cache limit for a batch larger than USUAL_BATCH
STALL = 0.2  # maximum seconds that a prefill chunk may delay other streams
PAYS = 0.8  # doubling the batch must reduce the cost per token to this share
FREE = 1.5  # a step counts as cheap up to this multiple of one row's cost


@dataclass(frozen=True, slots=True)
class Tuning:
    """Settings that an engine uses after tuning."""

    batch: int
    chunk: int


def tune(config: EngineConfig, costs: CostTable | None, slots: int) -> Tuning:
    """Return the settings, with open ones derived from measured costs, or the usual values without costs."""
    if costs is None:
        return Tuning(config.max_batch or min(USUAL_BATCH, slots), config.prefill_chunk or USUAL_CHUNK)
    return Tuning(config.max_batch or _batch(costs, slots), config.prefill_chunk or _chunk(costs))


def longest_draft(most: int, costs: CostTable | None, tile: int = 0) -> int:
    """Return the maximum draft length, at most `most`.

    Exceeds the usual length only if verifying it costs little more than one row. The rows fill whole tiles of `tile`
    rows (0: any number).
    """
    longest = _fills_tiles(most, tile)
    if costs is not None and costs.target.seconds(longest + 1) <= FREE * costs.target.seconds(1):
        return longest
    return min(most, USUAL_DRAFT)


def longest_prediction(most: int, tile: int = 0) -> int:
    """Return the maximum length of a draft from a client's prediction: twice `most`, in whole tiles of rows.

    Predictions are either right for many tokens or quickly known to be wrong. The policy decides which rows pay.
    """
    return _fills_tiles(2 * most, tile)


def largest_batch(config: EngineConfig, slot_bytes: int) -> int:
    """Return the maximum batch size within memory limits: the configured one, or the largest to measure."""
    if config.max_batch:
        return config.max_batch
    room = (config.cache_mb or BATCH_MB) * 2**20
    return MOST_BATCH if MOST_BATCH * slot_bytes <= room else USUAL_BATCH


def _fills_tiles(draft: int, tile: int) -> int:
    """Return the longest draft up to `draft` that fills whole tiles with the committed token's row, at least one tile.

    Returns `draft` if `tile` is 0 or the draft is shorter than a tile.
    """
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
