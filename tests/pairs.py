"""Engines built from tiny random models and toy tokenizers, requests for them, and scripted proposers."""

from __future__ import annotations

import random
from collections.abc import Sequence as Several
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import torch

from codespec.api.config import EngineConfig
from codespec.api.types import Completion, CompletionRequest, FinishReason, Stats
from codespec.backends.heads.checkpoint import LoadedHead
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.proposers.base import NOTHING, Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.sequence import Cap, Draft, Sequence
from codespec.startup.batch_invariance import check_exact
from codespec.text.tokenizer import TextTokenizer
from tests.tiny_models import tiny_network
from tests.toy_tokenizers import held_out_texts, toy_tokenizer

CONTEXT = 512
CAP = 5
CHECKED: set[TorchModel] = set()
JUNK = (
    "def ",
    "    ",
    "\t\t\t",
    "\r\n",
    "x",
    "return self.",
    "<|endoftext|>",
    "<|fim_middle|>",
    "</s>",
    "\U0001f600",
    "é",
)


@cache
def model(
    architecture: str, kind: str, dtype: str = "float32", seed: int = 0, exact: bool = True, twin: int = 0
) -> TorchModel:
    """Return a cached tiny model with the toy tokenizer of a kind; each `twin` has equal weights and its own KV cache.

    Two engines must not use the same one at the same time.
    """
    torch.set_num_threads(1)
    return wrapped(
        network_for(architecture, toy_tokenizer(kind), seed), toy_tokenizer(kind), architecture, dtype, exact
    )


@torch.no_grad()
def network_for(
    architecture: str,
    tokenizer: TextTokenizer,
    seed: int = 0,
    padding: int = 0,
    noise: float = 0.0,
    **change: Any,
) -> Any:
    """Return a float32 network that prefers ASCII; `padding` adds ids without a token; `noise` perturbs the weights."""
    network = tiny_network(architecture, vocab_size=tokenizer.vocab_size + padding, seed=seed, **change)
    head = network.get_output_embeddings().weight
    for number, spelled in enumerate(tokenizer.token_bytes):
        if not spelled.isascii():
            head[number] *= 0.5
    generator = torch.Generator().manual_seed(seed)
    for weight in network.parameters():
        weight += noise * weight.std(correction=0) * torch.randn(weight.shape, generator=generator)
    return network


def wrapped(
    network: Any, tokenizer: TextTokenizer, name: str, dtype: str = "float32", exact: bool = True
) -> TorchModel:
    """Wrap the network as a TorchModel of the given dtype."""
    kind, native = (torch.float32, True) if dtype == "native" else (getattr(torch, dtype), False)
    return wrap(network.to(kind), tokenizer, name, device=torch.device("cpu"), dtype=kind, exact=exact, native=native)


def build(
    target: TorchModel,
    proposer: Proposer | None = None,
    *,
    drafter: TorchModel | None = None,
    head: LoadedHead | None = None,
    **settings: object,
) -> Engine:
    """Build an engine with fresh caches and no warm-up; `proposer` replaces the configured one.

    If there is a `head`, the target is tapped for it.
    """
    if head is not None:
        target.tap(head.config.layers)
    defaults = {"context": CONTEXT, "warmup": 0, "policy": "fixed", "draft_tokens": CAP, "proposers": "draft_model"}
    exact = target.exact
    check = (lambda *_: "") if target in CHECKED else check_exact  # run the start-up check once per model
    with mock.patch("codespec.startup.batch_invariance.check_exact", check):
        engine = Engine.assemble(target, drafter, EngineConfig(**{**defaults, **settings}), head=head)
    assert target.exact == exact, engine.notes
    CHECKED.add(target)
    if proposer is not None:
        engine.proposers = (proposer,)
    return engine


def cancel(engine: Engine, sequence: Sequence) -> None:
    """End the request that a sequence belongs to."""
    for job in [job for job in engine.queue.jobs if sequence in job.sequences]:
        engine.queue.end(job)


def drafters(engine: Engine) -> list[DraftModel]:
    """Return the language models among an engine's proposers."""
    return [part for part in engine.proposers if isinstance(part, DraftModel)]


def prompts(count: int = 8) -> list[str]:
    """Return consecutive pieces of real code, between about 30 and 450 characters."""
    text = "".join(text[4000:12000] for text in held_out_texts())
    return [text[900 * n : 900 * n + 30 + (n * 170) % 430] for n in range(count)]


def varied_requests(**change: object) -> list[CompletionRequest]:
    """Return eight requests that differ in length, temperature, filters, penalties and alternatives."""
    settings: list[dict[str, object]] = [
        {},
        {"temperature": 0.8},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
        {"repetition_penalty": 1.3},
        {"temperature": 0.8, "min_p": 0.02, "repetition_penalty": 1.1},
        {"temperature": 0.8, "top_p": 0.7, "n": 3},
        {"temperature": 1.2, "top_k": 8},
        {},
    ]
    found = []
    for place, (prefix, own) in enumerate(zip(prompts(), settings, strict=True)):
        values = {"prefix": prefix, "max_tokens": 8 + (place * 7) % 13, "seed": place, **own, **change}
        found.append(CompletionRequest(**values))
    return found


def run(
    engine: Engine, requests: Several[CompletionRequest], *, together: bool = True, **change: object
) -> list[Completion]:
    """Return all completions, each followed by its alternatives; `together` in one batch, else one at a time."""
    asked = [replace(request, **change) for request in requests]
    done = engine.complete(asked) if together else [engine.complete([request])[0] for request in asked]
    return [choice for first in done for choice in (first, *first.alternatives)]


def texts(done: Several[Completion]) -> list[tuple[tuple[int, ...], str, str]]:
    """Return the fields that speculation must not change: ids, text and finish reason."""
    return [(choice.token_ids, choice.text, choice.finish_reason) for choice in done]


def total(done: Several[Completion]) -> Stats:
    """Return the sum of all statistics."""
    stats = Stats()
    for choice in done:
        stats.add(choice.stats)
    return stats


class Scripted(Proposer):
    """A proposer that returns `draft`'s result and records every draft's text in `message`."""

    name = "scripted"

    def __init__(self) -> None:
        self.message: list[bytes] = []
        self.released: list[Sequence] = []

    def propose(self, sequences: Several[Sequence], caps: Several[Cap]) -> list[Draft]:
        """Return a draft for each sequence."""
        drafts = [self.draft(sequence, cap) for sequence, cap in zip(sequences, caps, strict=True)]
        self.message += [draft.text for draft in drafts if draft.text]
        return drafts

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        """Return an empty draft."""
        return NOTHING

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Record a finished sequence."""
        if reason:
            self.released.append(sequence)


class Silent(Scripted):
    """Never drafts anything."""


class Oracle(Scripted):
    """Drafts exactly the next tokens of the answers, taken from a plain run of the same requests.

    It drafts text, of which only tokens that the target's tokenizer spells the same way are accepted, or ids with
    `as_ids`.
    """

    def __init__(
        self,
        target: TorchModel,
        requests: Several[CompletionRequest],
        plain: Several[Completion],
        as_ids: bool = False,
    ) -> None:
        super().__init__()
        self.target = target
        self.as_ids = as_ids
        self.answers: dict[tuple[CompletionRequest, int], tuple[int, ...]] = {}
        waiting = iter(plain)
        for request in requests:
            for choice in range(request.n):
                self.answers[_key(request), choice] = next(waiting).token_ids

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        """Return the next `cap` tokens of the answer."""
        return self.spell(self.ahead(sequence, cap))

    def ahead(self, sequence: Sequence, cap: Cap) -> tuple[int, ...]:
        """Return the answer's ids after those generated so far."""
        done = sequence.num_generated
        return self.answers[_key(sequence.request), sequence.choice][done : done + cap.tokens]

    def spell(self, ids: Several[int]) -> Draft:
        """Return a draft of these ids."""
        text = b"".join(self.target.token_bytes[token] for token in ids)
        return Draft(text, self.name, (len(text),), (1.0,), tuple(ids) if self.as_ids else None)


class Mixed(Oracle):
    """The oracle's draft with at most one token replaced at random: full, partial or no agreement."""

    def __init__(self, *given: object, seed: int = 0, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type]
        self.random = random.Random(seed)

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        """Return a draft that is right, wrong from some token on, or shorter than the cap."""
        ids = list(self.ahead(sequence, Cap(self.random.randint(1, cap.tokens))))
        if ids and self.random.random() < 0.6:
            ids[self.random.randrange(len(ids))] = self.random.randrange(len(self.target.tokenizer.token_bytes))
        return self.spell(ids)


class Garbage(Scripted):
    """Drafts random text: words, markers, invalid UTF-8."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        """Return a few random pieces."""
        pieces = "".join(self.random.choices(JUNK, k=cap.tokens)).encode()
        text = pieces + self.random.randbytes(self.random.randint(0, 3))
        return Draft(text, self.name, (len(text),), (0.5,))


class Troupe(Scripted):
    """Drafts with a randomly chosen script in each round."""

    def __init__(self, *players: Scripted, seed: int = 0) -> None:
        super().__init__()
        self.players = players
        self.random = random.Random(seed)

    def draft(self, sequence: Sequence, cap: Cap) -> Draft:
        """Return the draft of this round's script."""
        player = self.random.choice(self.players)
        return replace(player.draft(sequence, cap), source=type(player).__name__)


def _key(request: CompletionRequest) -> CompletionRequest:
    return replace(request, speculate=None, deadline_ms=None)
