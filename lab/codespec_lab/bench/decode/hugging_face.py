"""transformers' `generate` as a contestant: plain, with an assistant of another vocabulary, and with prompt lookup.

Assisted generation and prompt lookup take one prompt at a time. transformers reads an assistant's options from the
assistant's own generation configuration, so they are set there. Sampling with an assistant of another vocabulary
rewrites the assistant's head and embedding in place and caches it by its tokenizer, so it gets its own copies of both.
A stopping criterion counts rounds without changing them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.utils import logging as transformers_logging

from codespec.api.config import EngineConfig
from codespec.backends.torch.loader import DTYPES as TORCH_DTYPES
from codespec.backends.torch.model_check import FAILURES, one_line, quiet
from codespec.store.resolve import resolve
from codespec_lab.bench.decode.codespec_engine import FAMILY as OWN
from codespec_lab.bench.decode.contest import (
    Answer,
    Contestant,
    Family,
    ModelCache,
    PeerError,
    Task,
    Variant,
    Workload,
    cut_at_end,
    formats,
    join_answers,
    thread_counts,
)

FAMILY = "transformers"
PLAIN, ASSISTED, LOOKUP = FAMILY, f"{FAMILY} assisted", f"{FAMILY} prompt lookup"
ASSISTANT_TOKENS = (20, 5)  # per round; the first is transformers' default
LOOKUP_TOKENS = (10, 4)


@dataclass(slots=True)
class Assistant:
    """A drafter and both tokenizers; no tokenizers if both models have the same vocabulary."""

    network: Any
    tokenizers: dict[str, Any] = field(default_factory=dict)


class TransformersModels:
    """The pair as loaded by transformers, in every number format needed; both on the target's device."""

    def __init__(self, config: EngineConfig, shared_vocabulary: bool) -> None:
        self.config = config
        self._shared = shared_vocabulary
        self._targets: ModelCache[Any] = ModelCache(self._load_target)
        self._assistants: ModelCache[Assistant] = ModelCache(self._load_assistant)

    @property
    def has_drafter(self) -> bool:
        """Return whether the pair has a draft model."""
        return self.config.drafter != "none"

    def target(self, variant: Variant) -> Any:
        """Return the target of a variant."""
        return self._targets.get(variant.dtype)

    def assistant(self, variant: Variant, sampled: bool) -> Assistant:
        """Return the drafter of a variant; sampling uses its own copy."""
        found = self._assistants.get(variant.drafter_dtype, sampled)
        found.network.generation_config.num_assistant_tokens = ASSISTANT_TOKENS[variant.option]
        return found

    def keep(self, variants: Collection[Variant]) -> None:
        """Drop the models of other variants."""
        self._targets.keep({(v.dtype,) for v in variants})
        self._assistants.keep({(v.drafter_dtype, sampled) for v in variants for sampled in (False, True)})

    def _load_target(self, dtype: str) -> Any:
        network = load_network(self.config.target, dtype)
        return network.eval().to(self.config.device)

    def _load_assistant(self, dtype: str, sampled: bool) -> Assistant:
        network = load_network(self.config.drafter, dtype).eval().to(self.config.device)
        network.generation_config.num_assistant_tokens_schedule = "constant"
        if self._shared:
            return Assistant(network)
        names = {"tokenizer": self.config.target, "assistant_tokenizer": self.config.drafter}
        return Assistant(network, {role: _tokenizer(name) for role, name in names.items()})


class TransformersContestant(Contestant):
    """One way to call `generate`."""

    family = FAMILY

    def __init__(self, name: str, models: TransformersModels) -> None:
        self.name = name
        self.plain = self.batched = name == PLAIN
        self.reference = OWN if self.plain else FAMILY
        self._models = models

    def variants(self) -> list[Variant]:
        """Return all combinations of number formats, threads and draft lengths per round."""
        device = self._models.config.device
        drafters = formats(device) if self.name == ASSISTED else ("",)
        options = {PLAIN: (0,), ASSISTED: ASSISTANT_TOKENS, LOOKUP: LOOKUP_TOKENS}[self.name]
        ways = product(formats(device), drafters, thread_counts(device), range(len(options)))
        return [Variant(*found) for found in ways]

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Return the options in use."""
        if self.name == ASSISTED:
            settings = self._models.assistant(variant, False).network.generation_config
            names = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
            return {name: getattr(settings, name) for name in names}
        return {"prompt_lookup_num_tokens": LOOKUP_TOKENS[variant.option]} if self.name == LOOKUP else {}

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decode the prompts in padded batches, or one after another. Raise PeerError if transformers fails."""
        torch.set_num_threads(variant.threads)
        try:
            parts = work.parts() if self.batched else replace(work, at_once=1).parts()
            return join_answers(parts, lambda part: self._generate(part.tasks, part, variant))
        except FAILURES as error:
            raise PeerError(f"transformers fails: {type(error).__name__}: {one_line(error)}") from error

    def _generate(self, tasks: Sequence[Task], work: Workload, variant: Variant) -> Answer:
        network, sampled = self._models.target(variant), work.temperature > 0.0
        network.generation_config.eos_token_id = sorted(work.ends) or None
        network.generation_config.pad_token_id = 0
        options, meter = self._options(variant, sampled), Meter()
        ids, mask = (part.to(network.device) for part in _padded(tasks))
        options |= {"do_sample": True, "temperature": work.temperature, "top_k": 0, "top_p": 1.0} if sampled else {}
        torch.manual_seed(tasks[0].number)
        with quiet(), torch.inference_mode():
            began = time_when_done(network.device)
            written = network.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=work.tokens,
                stopping_criteria=StoppingCriteriaList([meter]),
                **options,
            )
            ended = time_when_done(network.device)
        texts = [cut_at_end(row, work.ends) for row in written[:, ids.shape[1] :].tolist()]
        return _answer(texts, meter, (began, ended), ids.shape[1])

    def _options(self, variant: Variant, sampled: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"do_sample": False}
        if self.name == LOOKUP:
            options["prompt_lookup_num_tokens"] = LOOKUP_TOKENS[variant.option]
        if self.name == ASSISTED:
            assistant = self._models.assistant(variant, sampled)
            options |= {"assistant_model": assistant.network, **assistant.tokenizers}
        return options


class TransformersFamily(Family):
    """transformers' contestants."""

    name = FAMILY

    def __init__(self, models: TransformersModels) -> None:
        self._models = models
        names = [PLAIN, *([ASSISTED] if models.has_drafter else []), LOOKUP]
        self.contestants = [TransformersContestant(name, models) for name in names]
        self.absent = {} if models.has_drafter else {ASSISTED: "there is no drafter"}

    def keep(self, variants: Collection[Variant]) -> None:
        """Drop the models of other variants."""
        self._models.keep(variants)


class Meter(StoppingCriteria):
    """A stopping criterion that never stops: records when the first round ended and counts the other rounds."""

    def __init__(self) -> None:
        self.first = 0.0
        self.length = 0  # ids after the first round
        self.rounds = 0

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        """Count a round and end no sequence."""
        if self.length:
            self.rounds += 1
        else:
            self.first, self.length = time_when_done(input_ids.device), input_ids.shape[1]
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def time_when_done(device: torch.device) -> float:
    """Wait until a device has finished its work, and return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def load_network(name: str, dtype: str) -> Any:
    """Load a model with transformers and its default attention."""
    loader: Any = AutoModelForCausalLM
    transformers_logging.disable_progress_bar()
    with quiet():
        return loader.from_pretrained(
            resolve(name).folder("float32"),
            dtype=TORCH_DTYPES[dtype],
            attn_implementation="sdpa",
            trust_remote_code=False,
            use_safetensors=True,
        )


def _tokenizer(name: str) -> Any:
    file = resolve(name).folder() / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), clean_up_tokenization_spaces=False)


def _padded(tasks: Sequence[Task]) -> tuple[Tensor, Tensor]:
    """Return the prompts [N, longest], padded on the left, and their attention mask."""
    longest = max(len(task.ids) for task in tasks)
    ids = [[0] * (longest - len(task.ids)) + list(task.ids) for task in tasks]
    mask = [[0] * (longest - len(task.ids)) + [1] * len(task.ids) for task in tasks]
    return torch.tensor(ids), torch.tensor(mask)


def _answer(ids: list[tuple[int, ...]], meter: Meter, times: tuple[float, float], prompt: int) -> Answer:
    """Return the answer of one call, without the padding that a batch appends to texts after their ends."""
    began, ended = times
    first = sum(min(len(text), meter.length - prompt) for text in ids)
    later = sum(map(len, ids)) - first
    rounds = meter.rounds if len(ids) == 1 else later
    return Answer(ids, ended - began, meter.first - began, first, rounds, accepted=max(0, later - rounds))
