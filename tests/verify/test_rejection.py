"""Rejection sampling: the text follows the target's distribution for any drafter, and biases are detected.

One round over a few letters, with thousands of seeds in order from 0: the joint frequencies of the first tokens against
exact products of the target's probabilities. The drafter draws with the same code as in `DraftModel`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.types import CompletionRequest
from codespec.sequence import Candidates
from codespec.verify import verifier
from codespec.verify.sampling import Position, Row, Sampler, draw, probabilities, row_key, uniform
from codespec.verify.verifier import View, reject

SIZE, SEEDS, DRAFTED = 3, 3000, 2
LIMIT = 54.1  # chi-square of 26 degrees of freedom, 1 in 1,000
LETTERS = [bytes([97 + number]) for number in range(SIZE)]
SAMPLER = Sampler(LETTERS)
GENERATOR = np.random.default_rng(4)
TARGET, DRAFTER = 1.2 * GENERATOR.standard_normal((2, SIZE + 1, SIZE)).astype(np.float32)  # by previous letter
Drafting = Callable[[CompletionRequest], Candidates]
Rule = Callable[[Candidates, View], tuple[int, int]]


def request_of(seed: int, **settings: float) -> CompletionRequest:
    return CompletionRequest(prefix="x", rule="rejection", seed=seed, **{"temperature": 1.0, **settings})  # type: ignore[arg-type]


def drafted(request: CompletionRequest, stop: float = 0.0) -> Candidates:
    """Return two letters, each drawn from the drafter's row after the previous one.

    Stop before a letter that is less likely than `stop`.
    """
    ids: list[int] = []
    rows: list[Row] = []
    while len(ids) < DRAFTED:
        row = probabilities(DRAFTER[ids[-1] if ids else -1], request)
        letter = draw(row, uniform(row_key(request.seed, 0, len(ids), 0, 3, 0)))
        if row[letter] < stop:
            break
        ids.append(letter)
        rows.append(row)
    return Candidates(tuple(ids), probabilities=tuple(rows))


def view_of(request: CompletionRequest, before: Sequence[int], first: int = 0) -> View:
    """Return the target's rows after each of these letters; -1 is the prompt."""
    positions = [Position(first + number) for number in range(len(before))]
    return View(SAMPLER, request, 0, torch.from_numpy(TARGET[list(before)]), positions)


def write(request: CompletionRequest, drafting: Drafting, rule: Rule) -> list[int]:
    """Return three letters: one round, then plain decoding."""
    candidates = drafting(request)
    accepted, last = rule(candidates, view_of(request, [-1, *candidates.ids]))
    text = [*candidates.ids[:accepted], last]
    while len(text) < DRAFTED + 1:
        text.append(view_of(request, text[-1:], len(text)).chosen(0))
    return text


def chi_square(drafting: Drafting = drafted, rule: Rule = reject, **settings: float) -> float:
    """Return the chi-square of all texts of three letters over SEEDS seeds."""
    asked = [request_of(seed, **settings) for seed in range(SEEDS)]
    counts = Counter(tuple(write(request, drafting, rule)) for request in asked)
    rows = [probabilities(row, asked[0]) for row in TARGET]
    found = 0.0
    for text in product(range(SIZE), repeat=3):
        wanted = SEEDS * float(np.prod([rows[b][letter] for b, letter in zip((-1, *text), text, strict=False)]))
        assert wanted or not counts[text], "something impossible was written"
        found += (counts[text] - wanted) ** 2 / max(wanted, 5.0)  # the rarest texts weigh less
    return found


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6}, {"top_k": 2, "temperature": 1.3}])
def test_the_distribution_is_the_targets(settings: dict[str, float]) -> None:
    assert chi_square(**settings) < LIMIT


def test_a_length_known_before_does_not_bend_it() -> None:
    """Stopping after an unlikely letter, which is kept, introduces no bias."""

    def unsure(request: CompletionRequest) -> Candidates:
        whole = drafted(request)
        length = 1 if whole.probabilities[0][whole.ids[0]] < 0.4 else 2
        return Candidates(whole.ids[:length], probabilities=whole.probabilities[:length])

    assert chi_square(unsure) < LIMIT


def test_a_confidence_stop_is_caught() -> None:
    """A planted bias: the drafter drops a letter because of its identity."""
    assert chi_square(lambda request: drafted(request, stop=0.35)) > 2 * LIMIT


def swapped(candidates: Candidates, view: View) -> tuple[int, int]:
    """A planted bias: the drafter reports another row than it drew from."""
    return reject(Candidates(candidates.ids, probabilities=candidates.probabilities[::-1]), view)


def plain(candidates: Candidates, view: View) -> tuple[int, int]:
    """A planted bias: a rejected letter is replaced by one drawn from all of p."""
    accepted, last = reject(candidates, view)
    if accepted < len(candidates.ids):
        last = draw(probabilities(view.logits[accepted].numpy(), view.request), view.uniform(accepted, 9))
    return accepted, last


def test_standing_too_often_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bias: each letter is accepted with probability min(1, p/q + 0.1)."""
    true = View.uniform
    monkeypatch.setattr(View, "uniform", lambda self, row, purpose: true(self, row, purpose) - 0.1 * (purpose == 1))
    assert chi_square() > 2 * LIMIT


@pytest.mark.parametrize("rule", [swapped, plain])
def test_a_planted_bias_is_caught(rule: Rule) -> None:
    assert chi_square(rule=rule) > 2 * LIMIT


def test_noise_for_one_thing_must_not_serve_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bias: the acceptance noise also draws the replacement, so only large noise ever draws."""
    monkeypatch.setitem(globals(), "TARGET", np.zeros_like(TARGET))
    monkeypatch.setitem(globals(), "DRAFTER", DRAFTER + np.array([6.0, 0.0, 0.0], np.float32))
    assert chi_square() < LIMIT
    monkeypatch.setattr(verifier, "REDRAWING", verifier.ACCEPTING)
    assert chi_square() > 2 * LIMIT


def test_a_drafter_that_is_the_target_is_always_right() -> None:
    for seed in range(300):
        request = request_of(seed)
        row = probabilities(TARGET[-1], request)
        letter = draw(row, uniform(row_key(seed, 0, 0, 0, 3, 0)))
        candidates = Candidates((letter,), probabilities=(row,))
        accepted, _ = reject(candidates, view_of(request, [-1, letter]))
        assert accepted == 1


@given(st.integers(0, 2**40), st.integers(0, 3), st.integers(0, 3))
def test_one_seed_and_one_draft_give_one_text(seed: int, more: int, fewer: int) -> None:
    """Rows without text that only one of the models has change nothing."""
    request = request_of(seed, temperature=0.9)
    candidates = drafted(request)
    view = view_of(request, [-1, *candidates.ids])
    told = reject(candidates, view_of(request, [-1, *candidates.ids]))
    padded = tuple(np.append(row, np.zeros(more, np.float32)) for row in candidates.probabilities)
    assert reject(Candidates(candidates.ids, probabilities=padded), view) == told
    wider = np.pad(TARGET[[-1, *candidates.ids]], ((0, 0), (0, fewer)), constant_values=-np.inf)
    view = View(Sampler([*LETTERS, *[b""] * fewer]), request, 0, torch.from_numpy(wider), view.positions)
    assert reject(candidates, view) == told


def test_more_is_accepted_than_by_matching_independent_draws() -> None:
    """Of letters drawn from q, the share of min(p, q) is accepted; matching would accept the share of p times q."""
    accepted, wanted = 0, 0.0
    for seed in range(2000):
        request = request_of(seed)
        candidates = drafted(request)
        accepted += reject(candidates, view_of(request, [-1, *candidates.ids]))[0] > 0
        wanted += float(np.minimum(candidates.probabilities[0], probabilities(TARGET[-1], request)).sum())
    assert accepted == pytest.approx(wanted, abs=100)
