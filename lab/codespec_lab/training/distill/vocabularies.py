"""Carries a target's probabilities for the next token to a drafter's vocabulary, by bytes.

Where a token boundary of both lies at the same byte, a target's token says which bytes come next. Its chance goes to
the token with which the drafter itself begins to spell them: the one of the same bytes where the vocabularies share it.
What cannot be carried is left out and the rest is scaled to one. Knows two vocabularies; knows no text and no weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codespec.text.tokenizer import TextTokenizer

NOWHERE = -1


class AlignedVocabularies:
    """`to_drafter` [target's vocabulary]: the drafter's id for each target id, or NOWHERE; `shared` counts target ids
    that have a drafter's token of the same bytes.
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
        """The drafter's `count` likeliest next tokens by the target's logits [N, vocabulary], and their probabilities,
        which sum to one: int32 and float16, both [N, count].
        """
        probabilities = logits.float().softmax(dim=1)
        where = self._carried.to(logits.device)
        carried = torch.zeros(len(logits), self._size, device=logits.device)
        carried.index_add_(1, self.to_drafter.to(logits.device)[where], probabilities[:, where])
        best, ids = carried.topk(min(count, self._size), dim=1)
        best = best / best.sum(dim=1, keepdim=True).clamp(min=1e-9)
        return ids.int().cpu(), best.half().cpu()
