"""Distillation data: texts that a target writes at positions of a code base, for a drafter to learn.

Any drafter can learn the target's text in its own tokens (sequence-level distillation, Kim and Rush 2016; for drafters
DistillSpec, Zhou et al. 2023). A quarter of the texts is sampled, so the drafter also sees continuations of the
target's less likely choices.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from codespec.api.config import EngineConfig
from codespec.api.types import Completion, CompletionRequest
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.errors import TrainingError
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.corpus.gaps import Complete
from codespec_lab.training.distill.places import Place, request_at

BATCH = 16  # texts per engine batch
GROUP = 4 * BATCH  # texts per call, so that new requests replace finished ones


@dataclass(frozen=True, slots=True)
class DistillationExample:
    """A target's text `middle` between a prefix and a suffix; `ended` if the target ended it itself."""

    path: str
    prefix: str
    middle: str
    suffix: str
    ended: bool


def distillation_engine(writer: TorchModel, threads: int = 0) -> Engine:
    """Return an engine for writing many texts: large batches, and drafts only from the text itself."""
    settings = EngineConfig(
        proposers="suffix", warmup=0, max_batch=BATCH, first_answer_ms=0, learn=False, threads=threads
    )
    return Engine.assemble(writer, None, settings)


def generate_examples(
    complete: Complete,
    places: Sequence[Place],
    *,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[list[DistillationExample]]:
    """Yield the target's texts at all positions, one list per call without empty texts, until `stop` returns True."""
    for start in range(0, len(places), GROUP):
        if stop():
            return
        numbers = range(start, min(start + GROUP, len(places)))
        yield write_group(complete, [request_at(places[number], number, seed=seed) for number in numbers])


def write_group(complete: Complete, requests: Sequence[CompletionRequest]) -> list[DistillationExample]:
    """Return the target's completions of the requests as examples, without empty texts."""
    done = complete(requests)
    return [
        to_example(request, completion) for request, completion in zip(requests, done, strict=True) if completion.text
    ]


def to_example(request: CompletionRequest, done: Completion) -> DistillationExample:
    """Combine a request and its completion."""
    ended = done.finish_reason == "stop"
    return DistillationExample(request.path, request.prefix, done.text, request.suffix, ended)


def save_examples(path: Path, examples: Sequence[DistillationExample]) -> None:
    """Write one JSON object per line, gzipped; equal examples give equal bytes. Raise TrainingError."""
    lines = b"".join(json.dumps(asdict(example), ensure_ascii=False).encode() + b"\n" for example in examples)
    write_atomically(path, gzip.compress(lines, mtime=0))


def load_examples(path: Path) -> list[DistillationExample]:
    """Read all examples of a file. Raise OSError, EOFError, ValueError or TypeError if it cannot be read."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [DistillationExample(**json.loads(line)) for line in file]


def read_examples(path: Path) -> list[DistillationExample]:
    """Read all examples of a file. Raise TrainingError if the file is missing, damaged or empty."""
    try:
        examples = load_examples(path)
    except FileNotFoundError as error:
        raise TrainingError(
            f"There is no distillation data at {path}; run `codespec train distill-data` first."
        ) from error
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise TrainingError(
            f"The distillation data {path} is damaged; run `codespec train distill-data` again."
        ) from error
    if not examples:
        raise TrainingError(
            f"The distillation data {path} is empty; run `codespec train distill-data` with more positions."
        )
    return examples
