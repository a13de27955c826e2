"""What only GPUs and heads need at start, with torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median

import torch

from codespec.api.engine_config import EngineConfig
from codespec.backends.heads.checkpoint import LoadedHead, load_head
from codespec.backends.heads.drafting import HeadRunner, Reading, make_runner
from codespec.backends.language_model import LanguageModel
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from codespec.proposers.base import Proposer
from codespec.proposers.head import make_proposer
from codespec.startup.timing import LONG, Shape, shapes_of, timed, turns
from codespec.user_folders import named_path

HEAD_ROWS, HEAD_BATCHES = (1, 2, 4, 16, 64), (2, 4, 8, 16)  # positions that a head reads; texts in its batch
HEAD_TURNS, HEAD_SECONDS = 5, 0.5  # turns, and seconds after two turns in which no further one starts


def load_target_head(target: LanguageModel, config: EngineConfig) -> LoadedHead:
    """Load the configured head and tap the target for it.

    Raises ModelError if it is invalid or belongs to another target, or if the target's layers can't be read.
    """
    if not isinstance(target, TorchModel) or target.spec.dtype == "native":
        fix = "set dtype bfloat16, or leave out head"
        raise ModelError(f"A head can't read the layers of a model with dtype {target.spec.dtype}", fix)
    head = load_head(named_path(config.head), target)
    target.tap(head.config.layers)
    return head


def head_proposer(head: LoadedHead, target: LanguageModel, chunk: int) -> Proposer:
    """Return the proposer of a head of `load_target_head`."""
    assert isinstance(target, TorchModel)
    return make_proposer(make_runner(head, target), chunk)


def gpu_memory(target: LanguageModel) -> int:
    """Return the memory of a target's GPU minus its weights, in bytes."""
    assert isinstance(target, TorchModel)
    whole: int = torch.cuda.mem_get_info(target.device)[1]
    return max(0, whole - target.spec.parameters * target.dtype.itemsize)


@torch.inference_mode()
def measure_head(runner: HeadRunner) -> Mapping[Shape, float]:
    """Return the seconds of a draft's first forward by shape (positions to read, batch, context).

    Clears all slots of the head's cache.
    """

    def wait() -> None:
        if runner.device.type == "cuda":
            torch.cuda.synchronize(runner.device)

    slots, long = len(runner.cache.done), min(LONG, runner.cache.kept.capacity - 64)
    shapes = shapes_of(HEAD_ROWS, HEAD_ROWS, [batch for batch in HEAD_BATCHES if batch <= slots], long)
    taken: dict[Shape, list[float]] = {shape: [] for shape in shapes}
    for _ in turns(HEAD_SECONDS, HEAD_TURNS, 2):
        for (rows, batch, context), times in taken.items():
            ids = [1] * (context + 1)
            readings = [Reading(slot, ids, context - rows // batch) for slot in range(batch)]
            times.append(timed(partial(runner.first, readings), wait))
    for slot in range(slots):
        runner.cache.cut(slot, 0)
    return {shape: median(times) for shape, times in taken.items()}
