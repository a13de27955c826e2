"""A client's prediction changes the time, never the text; its tokens are counted.

Right, wrong and partly right predictions, greedy and sampled, in batches, with every tokenizer kind.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from codespec.api.limits import MAX_PREDICTION
from codespec.api.types import Completion, CompletionRequest
from codespec.engine.engine import Engine
from codespec.errors import RequestError
from codespec.proposers.lookup import PredictionProposer, SuffixProposer
from codespec.speculation.cost_model import CostTable, ForwardCost, Point
from codespec.speculation.cost_policy import CostPolicy
from tests.pairs import build, model, run, texts, varied_requests
from tests.parrot import Parrot, parrot_engine
from tests.toy_tokenizers import toy_tokenizer

ARCHITECTURES = ("llama", "qwen3", "gemma3", "gpt2")


@cache
def plain(architecture: str, kind: str) -> list[Completion]:
    """Return the target's text without drafts."""
    return run(build(model(architecture, kind), max_batch=1), varied_requests(), together=False, speculate=False)


def answers(done: list[Completion], requests: list[CompletionRequest]) -> list[str]:
    """Return the first choice's text of each request."""
    firsts, place = [], 0
    for request in requests:
        firsts.append(done[place].text)
        place += request.n
    return firsts


def edited(text: str) -> str:
    """Return the text with one insertion and one deletion."""
    third = len(text) // 3
    return text[:third] + "something else" + text[third : 2 * third] + text[2 * third + 3 :]


# Drafts of text in every kind of tokenizer: test_lossless.
CASES = [(0, "gpt2", "fixed"), (1, "bytes", "fixed"), (2, "metaspace-first", "fixed"), (3, "gpt2", "cost+syntax")]


@pytest.mark.parametrize("number,kind,policy", CASES)
def test_on_equals_off(number: int, kind: str, policy: str) -> None:
    architecture = ARCHITECTURES[number % len(ARCHITECTURES)]
    target, requests, expected = model(architecture, kind), varied_requests(), plain(architecture, kind)
    message = answers(expected, requests)
    engine = build(target, proposers="chain", policy=policy, draft_tokens=5, learn=False)
    for change in (str, edited, lambda text: "no " + text[::-1]):
        asked = [replace(request, prediction=change(text)) for request, text in zip(requests, message, strict=True)]
        done = run(engine, asked)
        assert texts(done) == texts(expected)
    if policy == "fixed":  # the other policy drafts only if that pays here
        counts = engine.metrics.totals.by_source["prediction"]
        assert 0 < counts.accepted < counts.drafted


PREFIX = "# prices\n"
SPOKEN = "".join(f"def price{n}(value):\n    return value * {n} + rate{n}\n\n" for n in range(5))
OLD = SPOKEN.replace("price2", "cost2").replace("    return value * 3 + rate3\n", "").replace("rate4", "rate")


def complete(prediction: str, cap: int = 8, **request: object) -> Completion:
    """Return the completion of a parrot with this text, one request alone."""
    parrot = Parrot(toy_tokenizer("gpt2"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, PredictionProposer(), cap=cap)
    done = engine.complete([CompletionRequest(prefix=PREFIX, prediction=prediction, max_tokens=400, **request)])[0]
    assert done.text == SPOKEN
    assert engine.metrics.totals.by_source.keys() <= {"prediction"}
    return done


def test_fewer_rounds_the_better_the_prediction() -> None:
    right, old, wrong, none = (complete(text).stats for text in (SPOKEN, OLD, "x" * 400, ""))
    assert right.rounds < old.rounds < none.rounds / 2
    assert none.rounds == none.committed and none.by_source == {}
    assert 0 <= none.rounds - wrong.rounds <= 3
    counts = right.by_source["prediction"]
    assert counts.accepted == counts.drafted == right.committed - right.rounds


def test_a_useless_prediction_is_soon_left_alone() -> None:
    other = "".join(f"class Another{n}:\n    name = 'x{n}'\n" for n in range(40))
    stats = complete(other).stats
    assert stats.by_source["prediction"].drafted <= 5 * 8


def test_sampled_text_needs_no_luck() -> None:
    done = complete(OLD, temperature=0.7, seed=3)
    assert done.stats.by_source["prediction"].accepted > 0.7 * done.stats.committed


def test_the_policy_drafts_further_than_usual_while_few_are_written() -> None:
    costs = CostTable(ForwardCost.from_points([Point(1, 1, 0, 1.0), Point(64, 1, 0, 1.5)]))
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    policy = CostPolicy(costs, ("prediction", "suffix"), tokens=16, longer={"prediction": 48}, syntax=False)
    proposers = [PredictionProposer(), SuffixProposer()]
    engine = Engine(parrot, proposers, policy, context=1024, max_batch=4, warmup=0)

    def lengths(count: int) -> dict[str, int]:
        engine.metrics.tallies.clear()
        request = CompletionRequest(prefix=PREFIX, prediction=SPOKEN, max_tokens=300)
        engine.complete([request] * count)
        told = [key for key in engine.metrics.tallies if key[0] == "length"]
        return {source: max(int(n) for _, name, n in told if name == source) for _, source, _ in told}

    assert lengths(1)["prediction"] == 48
    assert lengths(2)["prediction"] == 24
    assert lengths(4)["prediction"] == 16, "of a full batch, each as many as any other draft"


@pytest.mark.parametrize(
    "prediction,word", [("x" * (MAX_PREDICTION + 1), "at most 262144"), ("a\ud800", "lone surrogate at character 1")]
)
def test_what_cannot_be_a_prediction(prediction: str, word: str) -> None:
    engine = build(model("llama", "gpt2"))
    with pytest.raises(RequestError, match=word) as caught:
        engine.complete([CompletionRequest(prefix=PREFIX, prediction=prediction)])
    assert caught.value.field == "prediction"
