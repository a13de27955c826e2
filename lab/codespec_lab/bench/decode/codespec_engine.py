"""codespec as a contestant: off, on, and each proposer alone.

Each workload gets a new engine and new proposers around the same loaded models, so that none finds a prompt already
prefilled or a text already remembered. A policy keeps its statistics for one pass over the prompts.
Only the steps of a full batch are timed.
"""

from __future__ import annotations

import collections.abc
import time
from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from codespec.api.config import EngineConfig
from codespec.api.types import FinishReason
from codespec.backends.language_model import LanguageModel
from codespec.backends.loader import load_model
from codespec.backends.memory_plan import Need, make_room
from codespec.backends.torch.model import TorchModel
from codespec.engine.engine import Engine
from codespec.errors import ConfigError
from codespec.proposers.base import Proposer
from codespec.proposers.draft_model import DraftModel
from codespec.proposers.lookup import SuffixProposer
from codespec.sequence import Cap, Draft, Sequence
from codespec.speculation.cost_model import CostTable
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import DraftPlan, DraftPolicy, FixedLength, StepResults
from codespec.startup.batch_invariance import MIN_LENGTH, check_exact
from codespec.startup.timing import measure_table
from codespec.startup.tuning import choose_policy, longest_draft
from codespec.store.machine import USUAL_CONTEXT, has_native
from codespec.store.resolve import resolve
from codespec_lab.bench.decode.contest import (
    Answer,
    Contestant,
    Family,
    ModelCache,
    Round,
    StepRounds,
    Variant,
    Workload,
    formats,
    thread_counts,
)
from codespec_lab.bench.pair import LONGEST, Pair
from codespec_lab.bench.steps import WatchedPolicy, measure_costs

NEVER = b"\x01"  # one token of any byte-level vocabulary, absent from real text
FAMILY = "codespec"
NATIVE = "native"
OFF, ON, NEVER_RIGHT = "codespec off", "codespec on", "codespec on, never right"
SUFFIX, DRAFT_MODEL = "codespec suffix", "codespec draft_model"
FIRST_TABLE_SECONDS, PASS_TABLE_SECONDS = 1.5, 3.0  # for a cost table's first measurement, and before a pass
WHOLE_PROMPT = 1 << 20  # tokens a step: one step prefills all prompts, as in the other programs


class RoundLog(WatchedPolicy):
    """A policy whose rounds are logged step by step."""

    def __init__(self, policy: DraftPolicy) -> None:
        super().__init__(policy)
        self.steps: list[StepRounds] = []

    def plan(self, batch: collections.abc.Sequence[Sequence]) -> DraftPlan:
        """Begin a step and return the policy's plan."""
        self.steps.append(StepRounds(sum(len(sequence.ids) for sequence in batch) / len(batch)))
        return super().plan(batch)

    def observe(self, results: StepResults) -> None:
        """Pass the results to the policy and log the rounds."""
        super().observe(results)
        for _, candidates, verdict in results.rounds:
            drafted = len(candidates.ids)
            source = candidates.source if drafted or candidates.units else ""
            self.steps[-1].rounds.append(Round(source, drafted, min(verdict.accepted, drafted), candidates.units))


class Spoiler(Proposer):
    """Makes a proposer's drafts wrong but keeps their length and confidence, to measure the cost of speculation on
    unpredictable text.

    Random words in a prompt would not work: a target copies them, so a lookup predicts them. Here the proposer does all
    its work, and its drafts are replaced by characters that never occur in real text.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.name, self.proposer = proposer.name, proposer

    def propose(
        self, sequences: collections.abc.Sequence[Sequence], caps: collections.abc.Sequence[Cap]
    ) -> list[Draft]:
        """Return wrong drafts with the same count and units."""
        drafts = self.proposer.propose(sequences, caps)
        return [spoil(draft, sequence.bytes_per_token()) for draft, sequence in zip(drafts, sequences, strict=True)]

    def commit(self, sequence: Sequence) -> bool:
        """Let the proposer read the text."""
        return self.proposer.commit(sequence)

    def release(self, sequence: Sequence, reason: FinishReason | None) -> None:
        """Let the proposer free what it holds."""
        self.proposer.release(sequence, reason)


def decode(engine: Engine, log: RoundLog, sequences: list[Sequence], count: int) -> Answer:
    """Run an engine until all sequences are finished.

    Only steps that write `count` texts and prefill no prompt count as decoding: a batch that empties towards the end
    does not represent one that is kept full.
    """
    whole, counted, tokens, steps = 0.0, 0.0, 0, []
    split = dict.fromkeys(_seconds(engine), 0.0)
    while not all(sequence.finish_reason for sequence in sequences):
        unread, written, before = _unread(sequences), _written(sequences), _seconds(engine)
        began = time.perf_counter()
        engine.step()
        taken = time.perf_counter() - began
        whole += taken
        if len(log.steps[-1].rounds) == count and _unread(sequences) == unread:
            counted += taken
            tokens += _written(sequences) - written
            steps.append(log.steps[-1])
            split = {name: split[name] + after - before[name] for name, after in _seconds(engine).items()}
    split["rest"] = counted - sum(split.values())
    rounds = [each for step in steps for each in step.rounds]
    return Answer(
        [tuple(sequence.ids[len(sequence.prompt_ids) :]) for sequence in sequences],
        whole,
        whole - counted,
        _written(sequences) - tokens,
        len(rounds),
        sum(each.drafted for each in rounds),
        sum(each.accepted for each in rounds),
        split,
        steps,
    )


def spoil(draft: Draft, bytes_per_token: float) -> Draft:
    """Return a draft of wrong tokens, one per unit; for a lookup, whose draft is one unit, about as many as it had."""
    units = len(draft.ends)
    if not units:
        return draft
    tokens = max(1, round(len(draft.text) / bytes_per_token)) if units == 1 else units
    ends = (tokens,) if units == 1 else tuple(range(1, units + 1))
    return Draft(NEVER * tokens, draft.source, ends, draft.confidences)


def _unread(sequences: list[Sequence]) -> int:
    """Return the number of sequences without a token yet."""
    return sum(not sequence.num_generated for sequence in sequences)


def _written(sequences: list[Sequence]) -> int:
    """Return the number of tokens written in all sequences."""
    return sum(sequence.num_generated for sequence in sequences)


def _seconds(engine: Engine) -> dict[str, float]:
    spent = engine.metrics
    return {"draft": spent.draft_s, "retokenize": spent.retokenize_s, "verify": spent.verify_s}


class OwnModels:
    """The pair in every number format needed, and its cost tables; `notes` list this device's limitations.

    `formats` and `drafter_formats` are the formats to try: the requested one, or all that may be the fastest.
    """

    def __init__(self, config: EngineConfig, slots: int, dtype: str = "", drafter_dtype: str = "") -> None:
        self.config = config
        self.drafter_device = config.device if config.drafter_device == "same" else config.drafter_device
        native = config.dtype == NATIVE or suits_native(config.target)
        self.formats = (dtype,) if dtype else own_formats(config.device, native)
        self.drafter_formats: tuple[str, ...] = (drafter_dtype,)
        if not self.has_drafter:
            self.drafter_formats = ()
        elif not drafter_dtype:
            native = NATIVE in (*self.formats, config.drafter_dtype) or suits_native(config.drafter)
            self.drafter_formats = own_formats(self.drafter_device, native)
        self.slots = slots
        self.notes: list[str] = []
        self.tables: dict[str, CostTable] = {}
        self._checked: set[object] = set()
        self._models: ModelCache[LanguageModel] = ModelCache(self._load)

    @property
    def has_drafter(self) -> bool:
        """Return whether the pair has a draft model."""
        return self.config.drafter != "none"

    def pair(self, variant: Variant) -> Pair:
        """Return the models of a variant, set to its thread count."""
        torch.set_num_threads(variant.threads)
        target = self._models.get("target", variant.dtype)
        drafter = self._models.get("drafter", variant.drafter_dtype) if variant.drafter_dtype else None
        for model in (target, drafter):
            if model is not None:
                self._shape(model, variant.threads)
        return Pair(target, drafter, self._context(target), self.config.warmup)

    def table(self, variant: Variant) -> CostTable:
        """Return the cost table of a variant; measure it quickly if it is not known yet."""
        key = table_name(variant)
        if key not in self.tables:
            pair = self.pair(variant)
            table = measure_table(pair.target, pair.drafters, FIRST_TABLE_SECONDS)
            self.tables[key] = self._with_known_target(table, variant)
        return self.tables[key]

    def keep(self, variants: Collection[Variant]) -> None:
        """Drop the models of other variants."""
        drafters = {("drafter", v.drafter_dtype) for v in variants if v.drafter_dtype}
        self._models.keep({("target", v.dtype) for v in variants} | drafters)

    def measure(self, variants: Collection[Variant]) -> None:
        """Measure the cost tables of `variants` again."""
        for name in [name for variant in variants for name in self._same_target(variant)]:
            self.tables.pop(name, None)
        for variant in sorted(variants, key=table_name):
            table = measure_costs(self.pair(variant), PASS_TABLE_SECONDS)
            self.tables[table_name(variant)] = self._with_known_target(table, variant)

    def _same_target(self, variant: Variant) -> list[str]:
        """Return the names of all tables with the variant's target, number format and threads."""
        kinds = ("", *self.drafter_formats)
        return [table_name(replace(variant, drafter_dtype=kind)) for kind in kinds]

    def _with_known_target(self, table: CostTable, variant: Variant) -> CostTable:
        """Return a table with the target's costs from an earlier table of the same target, if there is one. Two
        measurements would differ with the machine's load.
        """
        known = next((self.tables[name] for name in self._same_target(variant) if name in self.tables), table)
        return replace(known, drafters=table.drafters)

    def _context(self, target: LanguageModel) -> int:
        return min(target.spec.max_length, self.config.context or USUAL_CONTEXT)

    def _load(self, role: str, dtype: str) -> LanguageModel:
        config = self.config
        if role == "drafter":
            model = load_model(config.drafter, device=self.drafter_device, dtype=dtype, exact=False)
            return self._with_slots(model, self.slots, self._context(model) + 1)
        model = load_model(config.target, device=config.device, dtype=dtype, exact=True)
        self._with_slots(model, max(2, self.slots), max(MIN_LENGTH, self._context(model)))
        return model

    def _shape(self, model: LanguageModel, threads: int) -> None:
        """Set the number of threads, and check once that exact mode holds with it."""
        if not isinstance(model, TorchModel):
            model.use_threads(threads)
            return
        key = (model.spec.name, str(model.spec.dtype), model.exact, threads)
        if key not in self._checked:
            if variance := check_exact(model, self.notes):
                raise ConfigError(
                    f"This target's texts depend on the batch ({variance}), so they can't be compared: choose "
                    "another --device or target."
                )
            self._checked.add(key)
        model.threads = threads if model.device.type == "cpu" else None

    def _with_slots(self, model: LanguageModel, slots: int, capacity: int) -> LanguageModel:
        """Allocate slots and graphs as an engine does; a step may prefill all prompts."""
        need = Need(model, slots, capacity, slots * capacity, slots * (LONGEST + 1))
        make_room([need], self.config.graph_rows, lambda phase: None, self.notes)
        return model


class OwnContestant(Contestant):
    """One way to run codespec with the proposers named in `sources`. All drafts of the contestant NEVER_RIGHT are
    wrong.
    """

    family = reference = FAMILY
    batched = True
    keyed = True

    def __init__(self, name: str, models: OwnModels, sources: tuple[str, ...]) -> None:
        self.name = name
        self.plain = not sources
        self.sources = sources
        self._models = models
        self._policy: DraftPolicy | None = None

    def variants(self) -> list[Variant]:
        """Return the target and drafter in each format, with each thread count."""
        models = self._models
        drafters = models.drafter_formats if DraftModel.name in self.sources else ("",)
        return [Variant(*found) for found in product(models.formats, drafters, thread_counts(models.config.device))]

    def begin(self) -> None:
        """Start over with an untrained policy."""
        self._policy = None

    def facts(self, variant: Variant) -> dict[str, Any]:
        """Return the policy and the proposers."""
        policy = self._models.config.policy if self.sources else "off"
        return {"policy": policy, "sources": list(self.sources), "draft_tokens": self._models.config.draft_tokens}

    def answer(self, work: Workload, variant: Variant) -> Answer:
        """Decode all prompts in one engine: when a text ends, the next prompt begins."""
        pair = self._models.pair(variant)
        if self._policy is None:
            self._policy = self._new_policy(pair, variant)
        log = RoundLog(self._policy)
        engine = Engine(
            pair.target,
            self._proposers(pair, work.count),
            log,
            caps=self._models.config.caps,
            context=pair.context,
            max_batch=work.count,
            prefill_chunk=WHOLE_PROMPT,
            warmup=pair.warmup,
        )
        requests = [
            task.site.request(work.tokens, temperature=work.temperature, seed=task.number) for task in work.tasks
        ]
        sequences = [engine.submit(request)[0] for request in requests]
        for sequence in sequences:
            sequence.eos_ids = work.ends
        return decode(engine, log, sequences, work.count)

    def _proposers(self, pair: Pair, batch: int) -> list[Proposer]:
        parts = [part for part in pair.proposers(batch) if part.name in self.sources]
        return [Spoiler(part) for part in parts] if self.name == NEVER_RIGHT else parts

    def _new_policy(self, pair: Pair, variant: Variant) -> DraftPolicy:
        config = self._models.config
        if not self.sources:
            return FixedLength(0)
        if not config.policy.startswith("cost"):
            return choose_policy(config, [], pair.target, None, [])
        table = self._models.table(variant)
        drafters = {name: cost for name, cost in table.drafters.items() if name in self.sources}
        costs, syntax = replace(table, drafters=drafters), config.policy == "cost+syntax"
        longest = longest_draft(config.draft_tokens, costs)
        return CostPolicy(costs, self.sources, tokens=longest, syntax=syntax)


class OwnFamily(Family):
    """codespec's contestants."""

    name = FAMILY

    def __init__(self, models: OwnModels) -> None:
        self.models = models
        drafting, lookup = (DraftModel.name,), (SuffixProposer.name,)
        both = lookup + (drafting if models.has_drafter else ())
        rows = {OFF: (), ON: both, NEVER_RIGHT: both, SUFFIX: lookup}
        if models.has_drafter:
            rows[DRAFT_MODEL] = drafting
        self.contestants = [OwnContestant(name, models, sources) for name, sources in rows.items()]
        self.absent = {} if models.has_drafter else {DRAFT_MODEL: "there is no drafter"}

    def keep(self, variants: Collection[Variant]) -> None:
        """Drop the models of other variants."""
        self.models.keep(variants)


def own_formats(device: str, native: bool) -> tuple[str, ...]:
    """Return the number formats in which codespec may be fastest on a device; `native`: whether a model suits it."""
    return (*formats(device), NATIVE) if native and device == "cpu" and has_native() else formats(device)


def suits_native(name: str) -> bool:
    """Return whether a model is normally run in the file's own bits: the catalogue says so, or the weights come from
    a GGUF file and are rounded already. Other weights would lose precision that other programs' float formats keep.
    """
    model = resolve(name)
    return model.dtype == NATIVE if model.entry else model.form == "gguf"


def table_name(variant: Variant) -> str:
    """Return the name of a variant's cost table, made of everything that the table depends on."""
    return f"{variant.dtype}, drafter {variant.drafter_dtype or 'none'}, {variant.threads} thread(s)"
