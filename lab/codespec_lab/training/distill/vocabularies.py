"""Map a target's next-token probabilities to a drafter's vocabulary by bytes.

At a byte where tokens of both begin, a target token determines the next bytes. Its probability goes to the first
drafter token that spells them: the token with the same bytes if the vocabularies share it. Probability that cannot be
mapped is dropped, and the rest is renormalized.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codespec.text.tokenizer import TextTokenizer

NOWHERE = -1


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
