"""Rejection sampling through the whole engine: no policy biases it, neighbours are unaffected, and invalid settings
fail.

Target and drafter are bigram models over bytes, so that every probability can be computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from codespec.api.types import Completion, CompletionRequest
from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from codespec.engine import engine as engine_module
from codespec.engine.engine import Engine
from codespec.errors import RequestError
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import SuffixProposer
from codespec.sequence import Candidates
from codespec.sequence import Sequence as Text
from codespec.speculation.policy import DraftPlan, FixedLength
from codespec.verify.sampling import probabilities
from tests.kin import cousin
from tests.pairs import build, model, texts, total
from tests.parrot import CONTEXT, Parrot
from tests.toy_tokenizers import toy_tokenizer

KEPT, SEEDS = 3, 900  # letters that top-k leaves after each
LIMIT = 54.1  # chi-square of 26 degrees of freedom, 1 in 1,000


class Bigram(Parrot):
    """Logits from the last id only; `noise` distinguishes a drafter from its target."""

    def __init__(self, noise: float = 0.0) -> None:
        super().__init__(toy_tokenizer("bytes"), "")
        size, generator = len(self.token_bytes), torch.Generator().manual_seed(5)
        letters = torch.tensor([spelled.isalpha() and spelled.isascii() for spelled in self.token_bytes])
        table = torch.randn(size, size, generator=generator) + 3.0 * letters
        self.table = table + noise * torch.randn(size, size, generator=generator)

    def forward(self, batch: Sequence[Rows], cached: bool = True) -> Tensor:
        """Return the rows of the last `keep` ids of each sequence."""
        seen: list[int] = []
        for part in batch:
            held = self.cache.ids[part.slot]  # type: ignore[union-attr]
            held[part.start :] = part.ids
            seen += part.ids[len(part.ids) - part.keep :]
        return self.table[torch.tensor(seen, dtype=torch.long)]


class Trimming(FixedLength):
    """Drops drafted tokens of low confidence, and everything after them."""

    def plan(self, batch: Sequence[Text]) -> DraftPlan:
        return replace(super().plan(batch), trim=self._trim)

    def _trim(self, candidates: list[Candidates]) -> list[Candidates]:
        """With a drafter that samples, this depends on the drawn tokens."""
        found = []
        for own in candidates:
            sure = next((n for n, p in enumerate(own.confidences) if p < 0.12), len(own.ids))
            found.append(replace(own, ids=own.ids[:sure], probabilities=own.probabilities[:sure]))
        return found


def engine_of(drafter: TorchModel | None = None, *, suffix: bool = False, tokens: int = 2) -> Engine:
    """Return a bigram target with a drafter of another vocabulary."""
    target = Bigram()
    proposers: list[Proposer] = [SuffixProposer()] if suffix else []
    proposers.append(DraftModel(drafter or Bigram(1.0), CONTEXT, 8, target=target.tokenizer))
    return Engine(target, proposers, Trimming(tokens), context=CONTEXT, max_batch=8, warmup=0)


def asked(count: int, **settings: object) -> list[CompletionRequest]:
    values = {"prefix": "x", "max_tokens": 3, "temperature": 1.0, "top_k": KEPT, "rule": "rejection", **settings}
    return [CompletionRequest(seed=seed, **values) for seed in range(count)]  # type: ignore[arg-type]


def chi_square(done: Sequence[Completion], request: CompletionRequest) -> float:
    """Return the chi-square of all texts of three letters against products of the target's probabilities."""
    target, counts, found = Bigram(), Counter(one.token_ids for one in done), 0.0
    begin = target.tokenizer.encode(request.prefix)[-1]
    rows = {last: probabilities(target.table[last].numpy(), request) for last in range(len(target.token_bytes))}
    texts = [(begin,)]
    for _ in range(3):
        texts = [(*text, int(letter)) for text in texts for letter in np.flatnonzero(rows[text[-1]])]
    for text in texts:
        wanted = len(done) * float(np.prod([rows[last][letter] for last, letter in pairwise(text)]))
        found += (counts.pop(text[1:], 0) - wanted) ** 2 / max(wanted, 5.0)
    assert len(texts) == KEPT**3 and not counts, "something impossible was written"
    return found


def test_the_distribution_is_the_targets_whatever_a_policy_trims() -> None:
    engine = engine_of()
    done = engine.complete(asked(SEEDS))
    assert chi_square(done, asked(1)[0]) < LIMIT
    stats = total(done)
    assert min(stats.rounds_full, stats.rounds_partial, stats.rounds_none) > 100 and stats.drafted >= 2 * SEEDS


def test_a_trimmed_draw_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bias: a drawn token is dropped if it is unlikely."""
    monkeypatch.setattr(engine_module, "keep_drawn", lambda proposed, trimmed: trimmed)
    done = engine_of().complete(asked(SEEDS))
    assert chi_square(done, asked(1)[0]) > 2 * LIMIT


def test_neighbours_do_not_notice() -> None:
    """Greedy and matched requests give the same text as alone; so do requests with rejection, given the same drafts."""
    kinds: list[dict[str, object]] = [{"rule": "match"}, {"rule": "match", "temperature": 0.0}, {}, {"n": 2}]
    requests = [asked(4, max_tokens=14, top_k=0, **kind)[seed] for seed, kind in product(range(4), kinds)]
    together = engine_of(tokens=4).complete(requests)
    alone = [engine_of(tokens=4).complete([request])[0] for request in requests]
    assert texts(together) == texts(alone)
    plain = [engine_of().complete([replace(request, speculate=False)])[0] for request in requests]
    same = [ours.text == theirs.text for ours, theirs in zip(together, plain, strict=True)]
    matched = [request.rule == "match" for request in requests]
    assert all(s for s, m in zip(same, matched, strict=True) if m)
    assert not all(s for s, m in zip(same, matched, strict=True) if not m), "the text depends on the draft"


def test_what_a_lookup_finds_is_judged_by_matching() -> None:
    """It was not drawn, so it has no probabilities; both kinds of draft alternate in one text."""
    done = engine_of(suffix=True, tokens=4).complete(asked(8, prefix="abcabcabcabc", max_tokens=60, temperature=0.2))
    sources = total(done).by_source
    assert sources["suffix"].accepted and sources["draft_model"].accepted


def test_tokens_without_text_are_never_drawn() -> None:
    """The drafter prefers to end the text; only the target may write a silent token."""
    drafter = Bigram(1.0)
    silent = [number for number, spelled in enumerate(drafter.token_bytes) if not spelled]
    drafter.table[:, silent] += 30.0
    done = engine_of(drafter).complete(asked(20, max_tokens=10))
    assert silent and total(done).drafted > 100


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rule": "guess"}, "match or rejection"),
        ({"heal": True}, "match if heal is set"),
        ({"max_tokens": 900}, "but the drafter reads only 512"),
    ],
)
def test_what_can_not_be_is_refused(settings: dict[str, object], words: str) -> None:
    target = Bigram()
    drafter = DraftModel(Bigram(1.0), 512, 8, target=target.tokenizer)
    engine = Engine(target, [drafter], Trimming(2), context=CONTEXT, warmup=0)
    with pytest.raises(RequestError, match=words) as caught:
        engine.complete(asked(1, **settings))
    assert caught.value.field == "rule"


def test_another_vocabulary_is_refused() -> None:
    engine = build(model("llama", "bytes"), drafter=cousin("llama"))
    with pytest.raises(RequestError, match="its own vocabulary") as caught:
        engine.submit(asked(1)[0])
    assert caught.value.field == "rule"
    assert engine.complete(asked(1, rule="match"))[0].text
