"""Training and drafting agree: a lesson gives the same numbers as the runner with a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from codespec_lab.training.heads.features import Lesson
from codespec_lab.training.heads.losses import Vocabulary, accepted_runs, dflash_guesses, eagle3_guesses, guess_loss

from codespec.models.heads.config import Kind
from codespec.models.heads.drafting import DFlashRunner, Eagle3Runner, make_runner
from codespec.models.heads.networks import DFlash, Eagle3, HeadRotary
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from tests.random_heads import BLOCK, random_head
from tests.tiny_models import sample_ids, tiny_model
from tests.toy_tokenizers import toy_tokenizer

LENGTH, BEGIN, STEPS = 30, 12, 3
TOKENIZER = toy_tokenizer("gpt2")


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return tiny_model("llama", TOKENIZER, exact=False)


def lesson_of(target: LanguageModel, layers: tuple[int, ...]) -> Lesson:
    """Return a lesson of random ids, with the target's features and probabilities from slot 0."""
    ids = sample_ids(LENGTH)
    target.tap(layers)
    target.allocate(2, 64)
    target.admit(0, LENGTH)
    with torch.inference_mode():
        logits = target.forward([Rows(0, 0, ids, keep=LENGTH)])
        likely = logits.softmax(1).topk(4, dim=1)
        features = target.features.clone()
    return Lesson(torch.tensor(ids), features.clone(), likely.indices.clone(), likely.values.clone(), BEGIN)


def vocabulary_of(target: LanguageModel, kind: Kind) -> Vocabulary:
    head = random_head(target, kind)
    places = torch.full((target.choosable,), -1)
    places[head.ids] = torch.arange(len(head.ids))
    weight = head.network.lm_head.weight
    assert isinstance(weight, torch.Tensor)
    return Vocabulary(head.ids, weight, places)


def test_an_unrolled_eagle3_head_is_the_drafting_one(target: LanguageModel) -> None:
    head = random_head(target, "eagle3")
    lesson = lesson_of(target, head.config.layers)
    assert isinstance(head.network, Eagle3)
    rotation = HeadRotary(head.config, target.device)
    weight = head.network.lm_head.weight
    with torch.no_grad():
        guesses = list(eagle3_guesses(head.network, rotation, head.embed, lesson, STEPS))
        wanted = [{int(b): g.states[i] @ weight.T for i, b in enumerate(g.begins)} for g in guesses]  # type: ignore[operator]
    assert len(guesses) == STEPS and len(wanted[1]) < len(wanted[0])
    runner = make_runner(random_head(target, "eagle3"), target)
    assert isinstance(runner, Eagle3Runner)
    ids = lesson.ids.tolist()
    with torch.inference_mode():
        for begin in (0, 5, BEGIN, LENGTH - 5):
            reading = runner.open(0, ids[: begin + 2])
            found = [runner.first([reading])]
            for step in range(1, STEPS):
                found.append(runner.go_on([reading], [ids[begin + 1 + step]], step))
            for step, logits in enumerate(found):
                if begin in wanted[step]:
                    torch.testing.assert_close(logits[0], wanted[step][begin], atol=1e-4, rtol=1e-4)
    assert all(begin in wanted[STEPS - 1] for begin in (BEGIN, LENGTH - 5))


def test_a_block_in_a_lesson_is_the_drafted_one(target: LanguageModel) -> None:
    head = random_head(target, "dflash")
    lesson = lesson_of(target, head.config.layers)
    assert isinstance(head.network, DFlash)
    rotation, generator = HeadRotary(head.config, target.device), torch.Generator().manual_seed(0)
    weight = head.network.lm_head.weight
    with torch.no_grad():
        (guess,) = dflash_guesses(head.network, rotation, head.embed, lesson, 6, generator)
        logits = (guess.states @ weight.T).unflatten(0, (-1, BLOCK - 1))  # type: ignore[operator]
    anchors = guess.begins[:: BLOCK - 1].tolist()
    assert len(anchors) == 6 and (guess.weights == 0).equal(
        torch.cat([torch.arange(a + 1, a + BLOCK) >= LENGTH for a in anchors])
    )
    runner = make_runner(random_head(target, "dflash"), target)
    assert isinstance(runner, DFlashRunner)
    with torch.inference_mode():
        for place, anchor in enumerate(anchors):
            (found,) = runner.first([runner.open(0, lesson.ids.tolist()[: anchor + 1])])
            torch.testing.assert_close(found, logits[place], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_loss_is_the_cross_entropy_of_the_known_chances(kind: Kind, target: LanguageModel) -> None:
    vocabulary = vocabulary_of(target, kind)
    head = random_head(target, kind)
    lesson = lesson_of(target, head.config.layers)
    rotation, generator = HeadRotary(head.config, target.device), torch.Generator().manual_seed(0)
    for parameter in head.network.parameters():
        parameter.requires_grad_(True)
    if isinstance(head.network, Eagle3):
        guess = list(eagle3_guesses(head.network, rotation, head.embed, lesson, STEPS))[1]
    else:
        (guess,) = dflash_guesses(head.network, rotation, head.embed, lesson, 6, generator)
    loss, weight = guess_loss(guess, lesson, vocabulary)
    states = guess.states.detach().requires_grad_(True)
    logs = (states @ vocabulary.rows.T).log_softmax(1)
    plain, total = torch.zeros(()), 0.0
    for row, (position, share) in enumerate(zip(guess.positions.tolist(), guess.weights.tolist(), strict=True)):
        for token, chance in zip(lesson.likely[position - 1].tolist(), lesson.probabilities[position - 1], strict=True):
            place = int(vocabulary.places[token])
            if place >= 0:
                plain = plain - share * chance * logs[row, place]
                total += share * chance.item()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-4) and weight == pytest.approx(total, rel=1e-4)
    plain.backward()  # type: ignore[no-untyped-call]
    (gradient,) = torch.autograd.grad(guess_loss(replace(guess, states=states), lesson, vocabulary)[0], states)
    torch.testing.assert_close(gradient, states.grad, atol=1e-4, rtol=1e-3)
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [p.grad is not None for name, p in head.network.named_parameters() if "lm_head" not in name]
    assert all(trained)


def test_accepted_runs_end_at_the_first_wrong_token(target: LanguageModel) -> None:
    head = random_head(target, "eagle3")
    lesson = lesson_of(target, head.config.layers)
    vocabulary = vocabulary_of(target, "eagle3")
    assert isinstance(head.network, Eagle3)
    with torch.no_grad():
        guesses = list(eagle3_guesses(head.network, HeadRotary(head.config, target.device), head.embed, lesson, STEPS))
    chosen = {
        (int(b), int(p)): int(vocabulary.ids[(s @ vocabulary.rows.T).argmax()])
        for g in guesses
        for s, b, p in zip(g.states, g.begins, g.positions, strict=True)
    }
    ids = lesson.ids.clone()
    ids[BEGIN + 2] = chosen[BEGIN, BEGIN + 2]  # as if the target had written the first guess after BEGIN
    same = replace(lesson, ids=ids)
    taken, drafts = accepted_runs(guesses, same, vocabulary)
    wanted = 0
    begun = sorted({b for b, _ in chosen if b + 1 >= BEGIN})
    for begin in begun:
        position = begin + 2
        while chosen.get((begin, position)) == int(ids[min(position, LENGTH - 1)]) and position < LENGTH:
            wanted, position = wanted + 1, position + 1
    assert (taken, drafts) == (wanted, len(begun)) and taken > 0
