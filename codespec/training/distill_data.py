"""Distillation data: what a target writes at positions of the corpus, for a drafter to learn.

The two models have different vocabularies, so there are no probabilities to match: the drafter learns the target's text
(sequence-level distillation, Kim and Rush 2016; for drafters DistillSpec, Zhou et al. 2023). A quarter of the texts is
sampled, so the drafter also sees what follows a less likely choice of the target.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from codespec.config import EngineConfig
from codespec.corpus.documents import Document, write_atomically
from codespec.corpus.infilling import Complete
from codespec.engine.engine import Engine
from codespec.engine.load import assemble
from codespec.errors import TrainingError
from codespec.models.language_model import LanguageModel
from codespec.progress import ProgressBar
from codespec.training.cuts import cut_where_edited
from codespec.types import Completion, CompletionRequest

PREFIX_CHARS, SUFFIX_CHARS = 700, 300  # reading the prompt is most of the cost of a text
LEAST_CHARS = 400  # of a document
MAX_TOKENS = 96
BATCH = 16  # texts at once
GROUP = 4 * BATCH  # texts per call, so that finished ones make room for the next
FIM_SHARE = 0.5
SAMPLED_SHARE = 0.25
TEMPERATURE = 0.8


@dataclass(frozen=True, slots=True)
class DistillationExample:
    """A target's text `middle` between a prefix and a suffix; `ended` says whether the target ended it itself."""

    path: str
    prefix: str
    middle: str
    suffix: str
    ended: bool


def distillation_engine(target: LanguageModel) -> Engine:
    """An engine that writes many texts: large batches, and drafts only from the text itself."""
    return assemble(target, None, EngineConfig(proposers="suffix", warmup=0, max_batch=BATCH, first_answer_ms=0))


def example_request(document: Document, number: int, *, seed: int) -> CompletionRequest:
    """A request where somebody might edit: position, suffix or none, greedy or sampled, all by seed and number."""
    rng = np.random.default_rng([seed, 2, number])
    text = document.text
    start = int(rng.integers(max(1, len(text) - PREFIX_CHARS)))
    start = text.rfind("\n", 0, start + 1) + 1
    cut = cut_where_edited(text[start : start + PREFIX_CHARS + SUFFIX_CHARS], rng)
    fill_in = rng.random() < FIM_SHARE or not cut.prefix  # not every target can continue an empty text
    suffix = cut.suffix[:SUFFIX_CHARS] if fill_in else ""
    sampled = rng.random() < SAMPLED_SHARE
    return CompletionRequest(
        prefix=cut.prefix[-PREFIX_CHARS:],
        suffix=suffix,
        max_tokens=MAX_TOKENS,
        temperature=TEMPERATURE if sampled else 0.0,
        seed=number,
        path=document.path,
    )


def generate_examples(
    complete: Complete,
    documents: Sequence[Document],
    count: int,
    *,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[DistillationExample]:
    """Have the target complete at `count` positions, or until `stop` returns True; empty completions are left out.

    Raises TrainingError if no document is long enough.
    """
    long = [document for document in documents if len(document.text) >= LEAST_CHARS]
    if not long:
        raise TrainingError("The corpus has no file long enough to learn from: collect more packages.")
    chosen = _choose_documents(long, count, np.random.default_rng([seed, 3]))
    bar = ProgressBar("distill", count)
    for start in range(0, count, GROUP):
        if stop():
            return
        numbers = range(start, min(start + GROUP, count))
        requests = [example_request(chosen[number], number, seed=seed) for number in numbers]
        for request, done in zip(requests, complete(requests), strict=True):
            if done.text:
                yield _example(request, done)
        bar.advance(len(requests))


def _choose_documents(documents: Sequence[Document], count: int, rng: np.random.Generator) -> list[Document]:
    """Choose languages by the square root of their number of documents, so that rare ones are not forgotten."""
    by_language: dict[str, list[Document]] = {}
    for document in documents:
        by_language.setdefault(document.language, []).append(document)
    pools = list(by_language.values())
    shares = np.sqrt([len(pool) for pool in pools])
    picked = rng.choice(len(pools), size=count, p=shares / shares.sum())
    return [pools[pool][int(rng.integers(len(pools[pool])))] for pool in picked]


def _example(request: CompletionRequest, done: Completion) -> DistillationExample:
    ended = done.finish_reason == "stop"
    return DistillationExample(request.path, request.prefix, done.text, request.suffix, ended)


def save_examples(path: Path, examples: Sequence[DistillationExample]) -> None:
    """Write one JSON object per line, gzipped; equal examples give equal bytes. Raises TrainingError."""
    lines = b"".join(json.dumps(asdict(example), ensure_ascii=False).encode() + b"\n" for example in examples)
    write_atomically(path, gzip.compress(lines, mtime=0))


def read_examples(path: Path) -> list[DistillationExample]:
    """All examples of a file. Raises TrainingError if the file is missing, damaged or empty."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            examples = [DistillationExample(**json.loads(line)) for line in file]
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
