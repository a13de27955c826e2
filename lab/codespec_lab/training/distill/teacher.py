"""The target's distributions at every token of an existing text, from one forward without decoding.

They are stored by byte offset in the drafter's vocabulary. At a byte where tokens of both models begin, a target token
determines the next bytes. Its probability goes to the first drafter token that spells them: the token with the same
bytes if the vocabularies share it. Probability that cannot be mapped is dropped, and the rest is renormalized.
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

from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from codespec.errors import TrainingError
from codespec.text.fim import build_prompt
from codespec.text.fim_templates import FimMissing, FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.corpus.documents import write_atomically
from codespec_lab.training.distill.texts import DistillationExample

NOWHERE = -1
KEPT = 32  # drafter tokens stored per boundary
SLOTS = 4  # texts per forward
CONTEXT = 1024  # maximum tokens of prompt and text


class AlignedVocabularies:
    """A map from target ids to drafter ids.

    `to_drafter` [target vocabulary] holds the drafter's id of each target id, or NOWHERE. `shared` counts target ids
    with a drafter token of the same bytes.
    """

    def __init__(self, target: TextTokenizer, drafter: TextTokenizer) -> None:
        spelled = drafter.spell(list(target.token_bytes))
        if target.fingerprint == drafter.fingerprint:
            spelled = [[number] if data else [] for number, data in enumerate(target.token_bytes)]
        carried = [ids[0] if ids else NOWHERE for ids in spelled]
        self.shared = sum(len(ids) == 1 for ids in spelled)
        ends = sorted(drafter.model_eos_ids)
        for number in target.model_eos_ids if ends else ():
            if number < len(carried):
                carried[number] = ends[0]
        self.to_drafter = torch.tensor(carried, dtype=torch.long)
        self._size = drafter.vocab_size
        self._carried = (self.to_drafter != NOWHERE).nonzero()[:, 0]

    def carry(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Map the target's logits [N, vocabulary] to the drafter's `count` likeliest next tokens.

        Return their ids (int32) and probabilities (float16), which sum to one, both [N, count].
        """
        probabilities = logits.float().softmax(dim=1)
        where = self._carried.to(logits.device)
        carried = torch.zeros(len(logits), self._size, device=logits.device)
        carried.index_add_(1, self.to_drafter.to(logits.device)[where], probabilities[:, where])
        best, ids = carried.topk(min(count, self._size), dim=1)
        best = best / best.sum(dim=1, keepdim=True).clamp(min=1e-9)
        return ids.int().cpu(), best.half().cpu()


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

    def __init__(self, target: TorchModel, vocabularies: AlignedVocabularies) -> None:
        found = find_template(target.tokenizer)
        self._template = None if isinstance(found, FimMissing) else found
        self._target, self._vocabularies = target, vocabularies
        self._room = min(CONTEXT, target.spec.max_length)
        target.set_exact(False)
        target.allocate(SLOTS, self._room)

    @torch.inference_mode()
    def read(self, examples: Sequence[DistillationExample]) -> list[Expected]:
        """Return the target's distributions in each text."""
        read = list[Expected]()
        for start in range(0, len(examples), SLOTS):
            tokenizer, some = self._target.tokenizer, examples[start : start + SLOTS]
            laid = [lay_out(tokenizer, self._template, example, self._room) for example in some]
            for slot, text in enumerate(laid):
                self._target.admit(slot, len(text.ids))
            keep = [len(text.ids) - text.first + 1 for text in laid]
            rows = [
                Rows(slot, 0, text.ids, keep=kept) for slot, (text, kept) in enumerate(zip(laid, keep, strict=True))
            ]
            ids, probabilities = self._vocabularies.carry(self._target.forward(rows), KEPT)
            parts = zip(laid, ids.split(keep), probabilities.split(keep), strict=True)
            read += [Expected(text.bounds, *found) for text, *found in parts]
        return read


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
