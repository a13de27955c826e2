"""Training data for heads: texts with the target's hidden states and its top probabilities at every token.

The target reads each text once, after the same prompt as in the engine. Features are stored on disk in shards of
bounded size, so that later epochs and both kinds of heads reuse them. An existing shard is not rebuilt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from codespec.contract.types import CompletionRequest
from codespec.engine.admission import Admission
from codespec.errors import RequestError, TrainingError
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.store.conversion_cache import hash_once
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.progress import ProgressBar
from codespec_lab.training.distill.texts import DistillationExample

SHARD = 64  # texts
MOST_TOKENS = 1024  # prompt and text together
LIKELY = 16  # top tokens per position whose probabilities are stored
LEAST_WRITTEN = 2


@dataclass(frozen=True, slots=True)
class Lesson:
    """One text with its prompt.

    `ids` is [T] and `features`, the target's hidden states, [T, layers, size]. `likely` [T, LIKELY] holds the likeliest
    ids of the token after each position, with their `probabilities`. The tokens from index `begin` on follow the
    prompt.
    """

    ids: Tensor
    features: Tensor
    likely: Tensor
    probabilities: Tensor
    begin: int


class FeatureStore:
    """Random access to the lessons in a folder's shards; tensors are read from the files on demand."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self._files: list[Any] = [safe_open(path, framework="pt") for path in shards]
        self._places: list[tuple[int, int, int, int]] = []  # shard, first row, last row, begin
        for shard, file in enumerate(self._files):
            bounds = file.get_tensor("bounds").tolist()
            begins = file.get_tensor("begins").tolist()
            self._places += [(shard, *ends, begin) for ends, begin in zip(pairwise(bounds), begins, strict=True)]

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tokens(self) -> int:
        """Number of tokens in all lessons."""
        return sum(end - start for _, start, end, _ in self._places)

    def lesson(self, number: int) -> Lesson:
        """Return lesson `number`."""
        shard, start, end, begin = self._places[number]
        read = [
            self._files[shard].get_slice(name)[start:end] for name in ("ids", "features", "likely", "probabilities")
        ]
        return Lesson(read[0].long(), read[1], read[2].long(), read[3].float(), begin)

    def count_tokens(self, vocab_size: int) -> Tensor:
        """Count how often each token was in a text or the target's top choice: [vocabulary]."""
        counts = torch.zeros(vocab_size, dtype=torch.long)
        for number in range(len(self)):
            shard, start, end, begin = self._places[number]
            file = self._files[shard]
            counts += torch.bincount(file.get_slice("ids")[start + begin : end].long(), minlength=vocab_size)
            counts += torch.bincount(file.get_slice("likely")[start:end, 0].long(), minlength=vocab_size)
        return counts


def collect_features(
    model: LanguageModel,
    layers: Sequence[int],
    examples: Sequence[DistillationExample],
    folder: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> FeatureStore:
    """Run the target over every example without a stored shard, and return the store of all shards.

    The store is incomplete if `stop` returned True. Raise TrainingError if a shard is damaged or no example is usable.
    """
    place = folder / _key(model, layers, examples)
    wanted = range(-(-len(examples) // SHARD))
    shards = [place / f"{number:05}.safetensors" for number in wanted]
    bar = ProgressBar("read", len(shards))
    model.tap(layers)
    model.allocate(1, MOST_TOKENS)
    admission = Admission(model, MOST_TOKENS)
    for number, path in enumerate(shards):
        if stop():
            break
        if not path.is_file():
            texts = examples[number * SHARD : (number + 1) * SHARD]
            rows = [_read(model, admission, example, layers) for example in texts]
            _write_shard(path, [row for row in rows if row is not None])
        bar.advance()
    try:
        store = FeatureStore([path for path in shards if path.is_file()])
    except (SafetensorError, OSError) as error:
        raise TrainingError(f"A file in {place} is damaged ({error}): delete the folder and train again.") from error
    if not len(store):
        raise TrainingError("No text is long enough to learn from: run `codespec train distill-data` again.")
    return store


def _key(model: LanguageModel, layers: Sequence[int], examples: Sequence[DistillationExample]) -> str:
    """Return a cache key of the target, its layers and the examples."""
    assert model.folder is not None
    facts: dict[str, Any] = {
        "target": [hash_once(file) for file in sorted(model.folder.glob("*.safetensors"))],
        "tokenizer": model.tokenizer.fingerprint,
        "layers": list(layers),
        "dtype": str(model.dtype),
        "most": MOST_TOKENS,
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for example in examples:
        digest.update(json.dumps(asdict(example)).encode())
    return digest.hexdigest()[:16]


def prompt_and_text(
    model: LanguageModel, admission: Admission, example: DistillationExample
) -> tuple[list[int], int] | None:
    """Return an example's ids, the engine's own prompt included, and the index where the text begins.

    Return None if the text is too short, or prompt and text exceed MOST_TOKENS.
    """
    try:
        request = CompletionRequest(
            prefix=example.prefix, suffix=example.suffix, max_tokens=MOST_TOKENS // 4, path=example.path
        )
        sequence = admission.admit(request)[0]
    except RequestError:
        return None
    written = model.tokenizer.encode_inside(example.middle)
    if example.ended:
        written = [*written, min(sequence.eos_ids)] if sequence.eos_ids else written
    if len(written) < LEAST_WRITTEN or len(sequence.prompt_ids) + len(written) > MOST_TOKENS:
        return None
    return [*sequence.prompt_ids, *written], len(sequence.prompt_ids)


@torch.inference_mode()
def _read(
    model: LanguageModel, admission: Admission, example: DistillationExample, layers: Sequence[int]
) -> tuple[Tensor, ...] | None:
    """Return ids, features, likely ids, probabilities and begin of an example, or None if it is unusable."""
    found = prompt_and_text(model, admission, example)
    if found is None:
        return None
    ids, begin = found
    model.admit(0, len(ids))
    logits = model.forward([Rows(0, 0, ids, keep=len(ids))])
    likely = logits.topk(min(LIKELY, logits.shape[1]), dim=1)
    probabilities = (likely.values - logits.logsumexp(dim=1, keepdim=True)).exp()
    assert model.taps is not None
    places = [model.taps.layers.index(layer) for layer in layers]
    features = model.features[: len(ids), places].to("cpu", torch.bfloat16)
    rows = torch.tensor(ids, dtype=torch.int32)
    return rows, features, likely.indices.int().cpu(), probabilities.bfloat16().cpu(), torch.tensor(begin)


def _write_shard(path: Path, rows: Sequence[tuple[Tensor, ...]]) -> None:
    if not rows:
        return
    ids, features, likely, probabilities, begins = zip(*rows, strict=True)
    lengths = torch.tensor([0, *map(len, ids)])
    tensors = {
        "ids": torch.cat(ids),
        "features": torch.cat(features),
        "likely": torch.cat(likely),
        "probabilities": torch.cat(probabilities),
        "bounds": lengths.cumsum(0),
        "begins": torch.stack(begins),
    }
    write_atomically(path, save(tensors))
