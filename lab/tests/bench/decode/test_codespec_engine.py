"""codespec as a contestant: the batch stays full, and only steps of a full batch count."""

from __future__ import annotations

import torch
from codespec_lab.bench.decode.codespec_engine import NEVER, NEVER_RIGHT, OFF, ON, OwnContestant, OwnModels, spoil
from codespec_lab.bench.decode.contest import Task, Variant, Workload, cut_at_end, make_tasks
from codespec_lab.bench.decode.hugging_face import (
    ASSISTED,
    LOOKUP,
    PLAIN,
    TransformersContestant,
    TransformersModels,
)
from codespec_lab.bench.sites import PROMPTS, Site

from codespec.api.config import EngineConfig
from codespec.engine.admission import Admission
from codespec.sequence import Draft
from tests.cli.conftest import Models, models

__all__ = ["models"]

VARIANT = Variant("float32", "float32")
BOTH = ("suffix", "draft_model")
SITES = [
    Site(f"def area{n}(width):\n    return width * {n}\n\n\ndef area{n}(" * 4, path="a.py", kind=PROMPTS)
    for n in range(5)
]


def config_of(models: Models) -> EngineConfig:
    return EngineConfig(target=str(models.target), drafter=str(models.drafter), warmup=0, policy="fixed")


def tasks_of(own: OwnModels) -> tuple[Task, ...]:
    pair = own.pair(VARIANT)
    return tuple(make_tasks(Admission(pair.target, pair.context), SITES, 12)[0])


def test_a_batch_is_kept_full_and_only_full_steps_count(models: Models) -> None:
    own = OwnModels(config_of(models), 2)
    tasks = tasks_of(own)
    plain, guessing = OwnContestant(OFF, own, ()), OwnContestant(ON, own, BOTH)
    alone = [plain.answer(Workload((task,), 12), VARIANT).ids[0] for task in tasks]
    for contestant in (plain, guessing):
        contestant.begin()
        answer = contestant.answer(Workload(tasks, 12, at_once=2), VARIANT)
        assert answer.ids == alone
        assert answer.steps and all(len(step.rounds) == 2 for step in answer.steps)
        assert answer.rounds == 2 * len(answer.steps)
        assert 0 < answer.tokens <= 5 * 12 - 5 and 0.0 < answer.first_seconds < answer.seconds
    pair = plain.answer(Workload(tasks[:2], 12), VARIANT)
    assert (pair.tokens, pair.first_tokens, len(pair.steps)) == (22, 2, 11)
    five = plain.answer(Workload(tasks, 12, at_once=2), VARIANT)
    assert (five.tokens, five.first_tokens) == (
        44,
        16,
    )  # the 12 tokens of the last text, which runs alone, and the first tokens of the others


def test_texts_end_where_the_target_ends_them(models: Models) -> None:
    """Every contestant stops at the same id, alone and in a batch; tokens after it do not count."""
    own, config = OwnModels(config_of(models), 4), config_of(models)
    tasks = tasks_of(own)[:3]
    plain = OwnContestant(OFF, own, ())
    whole = [plain.answer(Workload((task,), 12), VARIANT).ids[0] for task in tasks]
    ends = frozenset({whole[0][5], whole[1][2]})
    expected = [cut_at_end(ids, ends) for ids in whole]
    assert len({len(ids) for ids in expected}) > 1 and min(map(len, expected)) < 12
    torch.manual_seed(0)
    peers = TransformersModels(config, shared_vocabulary=False)
    together = Workload(tasks, 12, at_once=3, ends=ends)
    for contestant in (
        plain,
        OwnContestant(ON, own, BOTH),
        OwnContestant(NEVER_RIGHT, own, BOTH),
        TransformersContestant(PLAIN, peers),
    ):
        answer = contestant.answer(together, VARIANT)
        assert answer.ids == expected, contestant.name
        assert answer.tokens + answer.first_tokens == sum(map(len, expected))
    for contestant in (
        TransformersContestant(ASSISTED, peers),
        TransformersContestant(LOOKUP, peers),
        TransformersContestant(PLAIN, peers),
    ):
        for task, ids in zip(tasks, expected, strict=True):
            answer = contestant.answer(Workload((task,), 12, ends=ends), VARIANT)
            assert answer.ids == [ids], contestant.name
            assert answer.rounds + answer.accepted == answer.tokens < len(ids)
    never = OwnContestant(NEVER_RIGHT, own, BOTH).answer(Workload(tasks[:1], 12), VARIANT)
    assert never.drafted > 0 == never.accepted


def test_a_spoilt_draft_is_as_long_and_as_sure() -> None:
    assert spoil(Draft(), 3.0) == Draft()
    model = spoil(Draft(b"ab cd ef", "draft_model", (2, 5, 8), (0.9, 0.8, 0.1)), 3.0)
    assert model == Draft(NEVER * 3, "draft_model", (1, 2, 3), (0.9, 0.8, 0.1))
    lookup = spoil(Draft(b"some twelve.", "suffix", (12,), (0.7,)), 3.0)
    assert lookup == Draft(NEVER * 4, "suffix", (4,), (0.7,))
