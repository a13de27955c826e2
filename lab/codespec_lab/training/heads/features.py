"""What a head learns from: a target's own texts, its hidden states at every token, and what it thought likely there.

The target reads each text once, behind the same prompt as in the engine, and what it said is kept on disk in shards of
a bounded size, so that many epochs and both kinds of heads read the same files. A shard that is there is not made
again. Knows files and forwards; knows no loss.
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

from codespec.catalogue.conversion_cache import hash_once
from codespec.engine.admission import Admission
from codespec.errors import RequestError, TrainingError
from codespec.model_folders.find import find_folder
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.progress import ProgressBar
from codespec.types import CompletionRequest
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.training.distill.texts import DistillationExample

SHARD = 64  # texts
MOST_TOKENS = 1024  # of a text with its prompt
LIKELY = 16  # tokens a position of which the target's probabilities are kept
LEAST_WRITTEN = 2


@dataclass(frozen=True, slots=True)
class Lesson:
    """One text with its prompt: `ids` [T], the target's `features` [T, layers, size], and of the token behind each
    position the `likely` ids [T, LIKELY] with their `probabilities`. The target wrote the tokens from `begin` on.
    """

    ids: Tensor
    features: Tensor
    likely: Tensor
    probabilities: Tensor
    begin: int


class FeatureStore:
    """The lessons of one folder, by number; reads from the files what is asked for."""

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
        """Tokens of all lessons."""
        return sum(end - start for _, start, end, _ in self._places)

    def lesson(self, number: int) -> Lesson:
        """One lesson."""
        shard, start, end, begin = self._places[number]
        read = [
            self._files[shard].get_slice(name)[start:end] for name in ("ids", "features", "likely", "probabilities")
        ]
        return Lesson(read[0].long(), read[1], read[2].long(), read[3].float(), begin)

    def count_tokens(self, vocab_size: int) -> Tensor:
        """How often the target wrote or thought likeliest each token: [vocabulary]."""
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
    """Has the target read every example, unless it has before, and returns what is there; less if `stop` came first.

    Raises TrainingError if a shard is damaged or no example is usable.
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
            rows = [_read(model, admission, one, layers) for one in texts]
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
    """A name for what this target says of these examples."""
    folder = find_folder(model.spec.name, model.spec.dtype)
    facts: dict[str, Any] = {
        "target": [hash_once(file) for file in sorted(folder.glob("*.safetensors"))],
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
    """The ids of an example behind the engine's own prompt, and where what the target wrote begins; None if it is too
    short, or too long to be read whole.
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
    """ids, features, likely, probabilities, begin of an example."""
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
