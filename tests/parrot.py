"""A fake target that continues a fixed text: a TorchModel whose logits come from the text instead of weights.

Its cache is the list of ids fed to each slot, by position, so its output depends on what the engine really cached. If
the cached context is not a beginning of the text, the next token is a hash of the context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from codespec.backends.language_model import ModelSpec, Rows
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.proposers.base import Proposer
from codespec.sequence import Cap, Draft
from codespec.sequence import Sequence as Text
from codespec.speculation.policy import FixedLength
from codespec.text.align import retokenize_batch
from codespec.text.tokenizer import TextTokenizer
from tests.pairs import Scripted

SURE = 12.0
CONTEXT = 1024


class Slots:
    """The ids of each slot; a fork copies them."""

    states = None  # recurrent ones

    def __init__(self, count: int) -> None:
        self.ids: list[list[int]] = [[] for _ in range(count)]

    def resumable(self, slot: int, length: int) -> int:
        """Return `length`: any prefix of a slot can be kept."""
        return length

    def fork(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` ids of `source`, like the real cache."""
        self.ids[target] = self.ids[source][:length]


class Parrot(TorchModel):
    """Continues `text` if the context is a beginning of it, and ends it with the tokenizer's end-of-text token."""

    def __init__(self, tokenizer: TextTokenizer, text: str, slots: int = 8) -> None:
        self.tokenizer = tokenizer
        self.text = (" " * tokenizer.dummy_prefix + text).encode()
        self.token_bytes = list(tokenizer.token_bytes)
        self.device = torch.device("cpu")
        self.spec = ModelSpec("parrot", "Parrot", 0, len(self.token_bytes), CONTEXT, "float32")
        self.exact = True
        self.variance = ""
        self.kernel = ""
        self.steps = "spans"
        self._rotary = None
        self.cache = Slots(slots)  # type: ignore[assignment]
        self.forwards = 0

    def admit(self, slot: int, length: int, cached: int = 0) -> None:
        """Keep the cached prefix."""
        del self.cache.ids[slot][cached:]

    def rollback(self, slot: int, length: int) -> None:
        """Truncate the slot to `length`."""
        del self.cache.ids[slot][length:]

    def forward(self, batch: Sequence[Rows], cached: bool = True) -> Tensor:
        """Return one row of near-certain logits for each kept position."""
        self.forwards += 1
        rows = []
        for part in batch:
            held = self.cache.ids[part.slot]
            assert len(held) >= part.start, "a position was skipped"
            held[part.start :] = part.ids
            rows += [self.says(held[:end]) for end in range(len(held) - part.keep + 1, len(held) + 1)]
        logits = torch.zeros(len(rows), len(self.token_bytes))
        logits[torch.arange(len(rows)), torch.tensor(rows, dtype=torch.long)] = SURE
        return logits

    def says(self, ids: Sequence[int]) -> int:
        """Return the next id."""
        message = b"".join(self.token_bytes[number] for number in ids)
        if not self.text.startswith(message):
            digest = hashlib.blake2b(repr(list(ids)).encode(), digest_size=4).digest()
            return int.from_bytes(digest, "little") % len(self.token_bytes)
        if len(message) == len(self.text):
            return min(self.tokenizer.model_eos_ids)
        return retokenize_batch(self.tokenizer, [(message[-64:], self.text[len(message) :][:64])])[0][0]


class Prompter(Scripted):
    """Drafts the parrot's text in pieces whose sizes cycle through `sizes`."""

    def __init__(self, parrot: Parrot, sizes: Sequence[int] = (5,)) -> None:
        super().__init__()
        self.parrot = parrot
        self.sizes = sizes

    def draft(self, sequence: Text, cap: Cap) -> Draft:
        """Return the parrot's next ids, as ids."""
        ids, message = list(sequence.ids), []
        for _ in range(min(cap.tokens, self.sizes[sequence.stats.rounds % len(self.sizes)])):
            message.append(self.parrot.says(ids + message))
        text = b"".join(self.parrot.token_bytes[number] for number in message)
        return Draft(text, self.name, (len(text),), (1.0,), tuple(message)) if message else Draft()


def parrot_engine(parrot: Parrot, proposer: Proposer | None = None, *, max_batch: int = 4, cap: int = 8) -> Engine:
    """Return an engine around a parrot, without warm-up."""
    proposers = [] if proposer is None else [proposer]
    return Engine(parrot, proposers, FixedLength(cap), context=CONTEXT, max_batch=max_batch, warmup=0)
