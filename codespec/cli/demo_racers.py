"""Who takes part in `make demo`'s measurement: codespec off and on, and transformers' `generate`, plain and with prompt
lookup, all with the same weights, the same prompt ids and the same end tokens.

Every text begins with an engine that has read nothing and remembers none, around models that are loaded once. Knows
engines and transformers; knows no places.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from codespec.bench.pair import Pair
from codespec.bench.peers.hugging_face import LOOKUP, LOOKUP_TOKENS, PLAIN, load_network
from codespec.config import EngineConfig
from codespec.control.draft_length import DraftLengthPolicy, FixedLength
from codespec.engine.admission import Admission
from codespec.engine.engine import Engine
from codespec.engine.policies import choose_policy
from codespec.engine.tuning import MOST_CHUNK
from codespec.models.model_check import quiet
from codespec.proposers.chain import ChainProposer
from codespec.proposers.draft_model import DraftModel
from codespec.types import CompletionRequest, Stats

OFF, ON, GENERATE = "codespec off", "codespec on", PLAIN


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is continued: the request, what the target reads of it, and which tokens end the text."""

    request: CompletionRequest
    ids: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One timed text; `ids` hold the end token, where it came to one."""

    seconds: float
    ids: tuple[int, ...]
    stats: Stats | None = None

    @property
    def pace(self) -> float:
        """Seconds a token, reading the prompt included."""
        return self.seconds / max(1, len(self.ids))


class Racer(Protocol):
    """One way to write a text."""

    name: str
    dtype: str
    exact: bool  # whether its text must be plain decoding's, bit for bit

    def write(self, prompt: Prompt) -> Run:
        """Writes one text."""
        ...


class Ours:
    """codespec around an engine's models."""

    def __init__(self, engine: Engine, config: EngineConfig, speculate: bool) -> None:
        self.name, self.dtype, self.exact = ON if speculate else OFF, config.dtype, engine.target.exact
        self._pair = Pair(engine.target, _drafter(engine), engine.context, engine.warmup)
        self._wanted = (config.proposers,) if config.proposers != "chain" else self._pair.sources
        self._speculate = speculate
        self._policy = self._new_policy(config)

    def write(self, prompt: Prompt) -> Run:
        """By an engine of its own."""
        pair = self._pair
        engine = Engine(
            pair.target,
            self._proposer(),
            self._policy,
            context=pair.context,
            max_batch=1,
            prefill_chunk=MOST_CHUNK,
            warmup=pair.warmup,
        )
        began = time.perf_counter()
        done = engine.complete([prompt.request])[0]
        return Run(time.perf_counter() - began, done.token_ids, done.stats)

    def _proposer(self) -> ChainProposer | None:
        if not self._speculate:
            return None
        return ChainProposer([part for part in self._pair.proposers() if part.name in self._wanted])

    def _new_policy(self, config: EngineConfig) -> DraftLengthPolicy:
        """One that has not seen what was shown before."""
        if not self._speculate:
            return FixedLength(0)
        return choose_policy(config, self._proposer(), self._pair.target, self._pair.drafter, [])


class Theirs:
    """One way to call `generate`, greedily."""

    exact = False

    def __init__(self, name: str, dtype: str, network: Any, **options: Any) -> None:
        self.name, self.dtype = name, dtype
        self._network, self._options = network, options

    def write(self, prompt: Prompt) -> Run:
        """The same prompt ids, to the same end tokens."""
        ids = torch.tensor([prompt.ids], device=self._network.device)
        began = time.perf_counter()
        with quiet(), torch.inference_mode():
            written = self._network.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=prompt.request.max_tokens,
                do_sample=False,
                eos_token_id=list(prompt.ends) or None,
                pad_token_id=0,
                **self._options,
            )
        found = tuple(written[0, ids.shape[1] :].tolist())
        return Run(time.perf_counter() - began, found)


def racers(engine: Engine, config: EngineConfig) -> list[Racer]:
    """All of one number format; transformers loads the target once more."""
    network = load_network(config.target, config.dtype).eval().to(engine.target.device)
    return [
        Ours(engine, config, speculate=False),
        Ours(engine, config, speculate=True),
        Theirs(GENERATE, config.dtype, network),
        Theirs(LOOKUP, config.dtype, network, prompt_lookup_num_tokens=LOOKUP_TOKENS[0]),
    ]


def read_prompts(engine: Engine, requests: Sequence[CompletionRequest]) -> list[Prompt]:
    """As the target reads them."""
    admission = Admission(engine.target, engine.context)
    admitted = [admission.admit(request)[0] for request in requests]
    return [Prompt(one.request, tuple(one.prompt_ids), tuple(sorted(one.eos_ids))) for one in admitted]


def _drafter(engine: Engine) -> Any:
    """The model that guesses in an engine, if one does."""
    parts = engine.proposer.proposers if isinstance(engine.proposer, ChainProposer) else (engine.proposer,)
    return next((part.model for part in parts if isinstance(part, DraftModel)), None)
