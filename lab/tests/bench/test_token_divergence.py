"""KL divergence, agreement and losses of two models against their definition."""

from __future__ import annotations

import pytest
import torch
from codespec_lab.bench.divergence import PIECE, WINDOW, Divergence, measure

from codespec.backends.language_model import Rows
from codespec.backends.torch.model import TorchModel
from codespec.errors import ModelError
from tests.pairs import model

WINDOWS = [[(7 * n * n + n) % 200 + 5 for n in range(length)] for length in (2, PIECE + 1, 2 * PIECE + 9)]


def other(seed: int = 1) -> TorchModel:
    return model("llama", "gpt2", seed=seed)


def logits(one: TorchModel, window: list[int]) -> torch.Tensor:
    """Compute the definition in one piece, in double precision."""
    one.allocate(1, WINDOW)
    one.admit(0, len(window))
    return one.forward([Rows(0, 0, window, keep=len(window))])[:, : one.spec.vocab_size].double()


def test_a_model_does_not_diverge_from_itself() -> None:
    found = measure(other(), other(), WINDOWS)
    assert (found.kl, found.same_first) == (0.0, 1.0) and found.loss_reference == found.loss_candidate
    twin = model("llama", "gpt2", seed=1, twin=1)
    assert measure(other(), twin, WINDOWS) == found


def test_as_defined() -> None:
    ours, theirs = other(), other(2)
    found = measure(ours, theirs, WINDOWS)
    kl = agree = first = second = 0.0
    for window in WINDOWS:
        p, q = (logits(one, window)[:-1].log_softmax(-1) for one in (ours, theirs))
        kl += float((p.exp() * (p - q)).sum())
        agree += float((p.argmax(-1) == q.argmax(-1)).sum())
        answers = torch.tensor(window[1:])[:, None]
        first, second = first - float(p.gather(1, answers).sum()), second - float(q.gather(1, answers).sum())
    count = sum(map(len, WINDOWS)) - len(WINDOWS)
    wanted = Divergence(kl / count, agree / count, first / count, second / count, count)
    assert found.tokens == count and found.same_first == wanted.same_first < 1
    assert found.kl == pytest.approx(wanted.kl, rel=1e-4) and found.kl > 0
    assert found.loss_reference == pytest.approx(wanted.loss_reference, rel=1e-5)
    assert found.loss_candidate == pytest.approx(wanted.loss_candidate, rel=1e-5)


def test_a_small_change_of_the_head_is_seen() -> None:
    changed = model("llama", "gpt2", seed=1, twin=2)
    plain = changed.forward

    def forward(batch: list[Rows], cached: bool = True) -> torch.Tensor:
        return plain(batch, cached) * 1.01

    changed.forward = forward  # type: ignore[method-assign, assignment]
    try:
        found = measure(other(), changed, WINDOWS)
    finally:
        del changed.forward
    assert 0 < found.kl < 0.01 and found.same_first == 1.0 and found.loss_candidate != found.loss_reference


def test_mistakes_are_one_sentence() -> None:
    for windows, message in (([], "no token to predict"), ([[1]], "no token"), ([[1] * (WINDOW + 1)], "at most 512")):
        with pytest.raises(ModelError, match=message):
            measure(other(), other(), windows)
    with pytest.raises(ModelError, match="compare models with one vocabulary"):
        measure(other(), model("llama", "llama2"), WINDOWS)
