"""The target's distributions at every token of an existing text, from one forward without decoding.

They are stored by byte offset in the drafter's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from codespec.errors import TrainingError
from codespec.models.call_shape import FAST
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.text.fim import build_prompt
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.training.distill.texts import DistillationExample
from codespec_lab.training.distill.vocabularies import AlignedVocabularies

KEPT = 32  # drafter tokens stored per boundary
SLOTS = 4  # texts per forward
CONTEXT = 1024  # maximum tokens of prompt and text


@dataclass(frozen=True, slots=True)
class Laid:
    """A prompt and its text in one model's tokens.

    The tokens from index `first` on spell the end of the prefix and then the text. `bounds` are their boundaries in
    bytes from the cursor, negative in the prefix.
    """

    ids: list[int]
    first: int
    bounds: list[int]


def lay_out(tokenizer: TextTokenizer, template: FimTemplate | None, example: DistillationExample, room: int) -> Laid:
    """Return an example in a model's prompt format, at most `room` tokens; a text that is too long loses its end."""
    text = tokenizer.encode_inside(example.middle)[: room // 2]
    prompt = build_prompt(
        tokenizer,
        template if example.suffix else None,
        prefix=example.prefix,
        suffix=example.suffix,
        path=example.path,
        budget=room - len(text),
    )
    ids = [*prompt.ids, *text]
    first = len(prompt.ids)
    while prompt.continues and first and prompt.ids[first - 1] not in tokenizer.special_ids:
        first -= 1
    first = max(first, 1)  # no logits predict the first token
    sizes = [len(tokenizer.token_bytes[number]) for number in ids[first:]]
    begin = -sum(sizes[: len(prompt.ids) - first])
    return Laid(ids, first, list(accumulate(sizes, initial=begin)))


@dataclass(frozen=True, slots=True)
class Expected:
    """The target's distributions in one text.

    `offsets` [N] are the target's token boundaries in bytes from the cursor. `ids` (int32) are the drafter's likeliest
    next tokens there and `probabilities` (float16) their probabilities, both [N, KEPT].
    """

    offsets: list[int]
    ids: Tensor
    probabilities: Tensor


class Teacher:
    """A target that scores existing texts.

    It reallocates the model's slots, so engines that used them become invalid.
    """

    def __init__(self, target: LanguageModel, vocabularies: AlignedVocabularies) -> None:
        found = find_template(target.tokenizer)
        self._template = None if isinstance(found, FimMissing) else found
        self._target, self._vocabularies = target, vocabularies
        self._room = min(CONTEXT, target.spec.max_length)
        target.use(FAST)
        target.allocate(SLOTS, self._room)

    @torch.inference_mode()
    def read(self, examples: Sequence[DistillationExample]) -> list[Expected]:
        """Return the target's distributions in each text."""
        read = list[Expected]()
        for start in range(0, len(examples), SLOTS):
            laid = [self._lay(example) for example in examples[start : start + SLOTS]]
            for slot, one in enumerate(laid):
                self._target.admit(slot, len(one.ids))
            keep = [len(one.ids) - one.first + 1 for one in laid]
            rows = [Rows(slot, 0, one.ids, keep=kept) for slot, (one, kept) in enumerate(zip(laid, keep, strict=True))]
            ids, probabilities = self._vocabularies.carry(self._target.forward(rows), KEPT)
            parts = zip(laid, ids.split(keep), probabilities.split(keep), strict=True)
            read += [Expected(one.bounds, *found) for one, *found in parts]
        return read

    def _lay(self, example: DistillationExample) -> Laid:
        return lay_out(self._target.tokenizer, self._template, example, self._room)


def save_expected(path: Path, texts: Sequence[Expected]) -> None:
    """Write the distributions of several texts; equal input gives equal bytes. Raise TrainingError."""
    offsets = torch.tensor([offset for text in texts for offset in text.offsets], dtype=torch.int32)
    tensors = {
        "counts": torch.tensor([len(text.offsets) for text in texts], dtype=torch.int32),
        "offsets": offsets,
        "ids": torch.cat([text.ids for text in texts]) if texts else torch.zeros(0, KEPT, dtype=torch.int32),
        "probabilities": torch.cat([text.probabilities for text in texts]) if texts else torch.zeros(0, KEPT).half(),
    }
    write_atomically(path, save(tensors))


def load_expected(path: Path) -> list[Expected]:
    """Read a file that `save_expected` wrote. Raise TrainingError if it cannot be read."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{path} cannot be read ({error}): begin without --resume.") from error
    counts = tensors["counts"].tolist()
    parts = zip(*(tensors[name].split(counts) for name in ("offsets", "ids", "probabilities")), strict=True)
    return [Expected(offsets.tolist(), ids, probabilities) for offsets, ids, probabilities in parts]
