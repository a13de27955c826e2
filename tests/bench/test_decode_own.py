"""codespec's own contestants: many prompts through a batch that is kept full, and what of it counts."""

from __future__ import annotations

from codespec.bench.decode_prompts import Place, first_tasks
from codespec.bench.peers.contest import Variant, Work
from codespec.bench.peers.ours import OFF, ON, Own, OwnModels
from codespec.config import EngineConfig
from tests.cli.conftest import Models, models

__all__ = ["models"]

VARIANT = Variant("float32", "float32")
PLACES = [Place(f"def area{n}(width):\n    return width * {n}\n\n\ndef area{n}(" * 4, "a.py") for n in range(5)]


def test_a_batch_is_kept_full_and_only_full_steps_count(models: Models) -> None:
    own = OwnModels(EngineConfig(target=str(models.target), drafter=str(models.drafter), warmup=0), 2)
    tasks = tuple(first_tasks(own, VARIANT, PLACES, len(PLACES)))
    plain, guessing = Own(OFF, own, ()), Own(ON, own, ("suffix", "draft_model"))
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
