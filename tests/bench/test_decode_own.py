"""codespec's own contestants: many prompts through a batch that is kept full, and what of it counts."""

from __future__ import annotations

import torch

from codespec.bench.decode_prompts import Place, make_tasks
from codespec.bench.peers.contest import PROMPTS, Task, Variant, Work, cut_at_end
from codespec.bench.peers.hugging_face import ASSISTED, LOOKUP, PLAIN, Peer, PeerModels
from codespec.bench.peers.ours import NEVER_RIGHT, OFF, ON, Own, OwnModels
from codespec.config import EngineConfig
from codespec.engine.admission import Admission
from tests.cli.conftest import Models, models

__all__ = ["models"]

VARIANT = Variant("float32", "float32")
BOTH = ("suffix", "draft_model")
PLACES = [
    Place(PROMPTS, f"def area{n}(width):\n    return width * {n}\n\n\ndef area{n}(" * 4, "", "a.py") for n in range(5)
]


def config_of(models: Models) -> EngineConfig:
    return EngineConfig(target=str(models.target), drafter=str(models.drafter), warmup=0, policy="fixed")


def tasks_of(own: OwnModels) -> tuple[Task, ...]:
    pair = own.pair(VARIANT)
    return tuple(make_tasks(Admission(pair.target, pair.context), PLACES, 12)[0])


def test_a_batch_is_kept_full_and_only_full_steps_count(models: Models) -> None:
    own = OwnModels(config_of(models), 2)
    tasks = tasks_of(own)
    plain, guessing = Own(OFF, own, ()), Own(ON, own, BOTH)
    alone = [plain.answer(Work((task,), 12), VARIANT).ids[0] for task in tasks]
    for contestant in (plain, guessing):
        contestant.begin()
        answer = contestant.answer(Work(tasks, 12, at_once=2), VARIANT)
        assert answer.ids == alone
        assert answer.steps and all(len(step.rounds) == 2 for step in answer.steps)
        assert answer.rounds == 2 * len(answer.steps)
        assert 0 < answer.tokens <= 5 * 12 - 5 and 0.0 < answer.first_seconds < answer.seconds
    pair = plain.answer(Work(tasks[:2], 12), VARIANT)
    assert (pair.tokens, pair.first_tokens, len(pair.steps)) == (22, 2, 11)
    five = plain.answer(Work(tasks, 12, at_once=2), VARIANT)
    assert (five.tokens, five.first_tokens) == (44, 16)  # the last text is alone: 12, and the others' first tokens


def test_texts_end_where_the_target_ends_them(models: Models) -> None:
    """Everybody stops at the same id, alone and in a batch, and tokens behind it count for nobody."""
    own, config = OwnModels(config_of(models), 4), config_of(models)
    tasks = tasks_of(own)[:3]
    plain = Own(OFF, own, ())
    whole = [plain.answer(Work((task,), 12), VARIANT).ids[0] for task in tasks]
    ends = frozenset({whole[0][5], whole[1][2]})
    expected = [cut_at_end(ids, ends) for ids in whole]
    assert len({len(ids) for ids in expected}) > 1 and min(map(len, expected)) < 12
    torch.manual_seed(0)
    peers = PeerModels(config, shared_vocabulary=False)
    together = Work(tasks, 12, at_once=3, ends=ends)
    for contestant in (plain, Own(ON, own, BOTH), Own(NEVER_RIGHT, own, BOTH), Peer(PLAIN, peers)):
        answer = contestant.answer(together, VARIANT)
        assert answer.ids == expected, contestant.name
        assert answer.tokens + answer.first_tokens == sum(map(len, expected))
    for contestant in (Peer(ASSISTED, peers), Peer(LOOKUP, peers), Peer(PLAIN, peers)):
        for task, ids in zip(tasks, expected, strict=True):
            answer = contestant.answer(Work((task,), 12, ends=ends), VARIANT)
            assert answer.ids == [ids], contestant.name
            assert answer.rounds + answer.accepted == answer.tokens < len(ids)
    never = Own(NEVER_RIGHT, own, BOTH).answer(Work(tasks[:1], 12), VARIANT)
    assert never.drafted > 0 == never.accepted
