"""Choices on the device equal the host's: the same noise bit for bit, filters, penalties and restrictions.

In device steps every row's choice is made there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from codespec.api.types import CompletionRequest
from codespec.verify import device_sampling, sampling
from codespec.verify.device_sampling import DeviceSampler, SampledRow
from codespec.verify.sampling import Position, Sampler, survivors
from tests.engine.test_device_steps import CASES, device_model, plain
from tests.pairs import Mixed, build, run, texts, varied_requests

SPELLED = [bytes([97 + number % 26]) * (number // 26 + 1) for number in range(300)] + [b"a", b"", b""]
CPU = torch.device("cpu")
HOST, DEVICE = Sampler(SPELLED), DeviceSampler(SPELLED, CPU)

requests = st.builds(
    lambda heat, k, p, least, penalty, seed: CompletionRequest(
        prefix="x", temperature=heat, top_k=k, top_p=p, min_p=least, repetition_penalty=penalty, seed=seed
    ),
    st.sampled_from([0.0, 0.2, 0.8, 1.0, 2.5]),
    st.sampled_from([0, 1, 5, 50, 302, 303, 1000]),
    st.sampled_from([0.05, 0.5, 0.9, 0.9999999999999999, 1.0]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([1.0, 0.7, 1.3]),
    st.integers(-(2**63), 2**63 - 1),
)
positions = st.builds(
    Position,
    st.integers(0, 10**6),
    st.integers(0, 3),
    st.lists(st.integers(0, len(SPELLED) - 1), max_size=6),
    st.none() | st.lists(st.integers(0, len(SPELLED) - 1), min_size=1, max_size=40, unique=True),
)
sampled_rows = st.builds(SampledRow, requests, st.integers(0, 4), positions)


def rows_of(seed: int, count: int, ties: bool) -> Tensor:
    rows = 3.0 * torch.randn(count, len(SPELLED), generator=torch.Generator().manual_seed(seed))
    return rows.round() if ties else rows


@given(st.integers(0, 2**64 - 1))
def test_noise_has_the_hosts_bits(key: int) -> None:
    hashes = sampling.token_hashes(SPELLED)
    theirs = sampling.gumbel(key, hashes)
    ours = device_sampling.gumbel([key], DEVICE._hashes, DEVICE._low, DEVICE._high)[0].numpy()
    assert np.allclose(ours, theirs, rtol=1e-14, atol=1e-14)
    assert (ours == theirs).mean() > 0.5, "the bits that go in are the same, logarithms may round otherwise"


@given(st.integers(0, 1000), st.lists(sampled_rows, min_size=1, max_size=6))
def test_choices_are_the_hosts(seed: int, asked: list[SampledRow]) -> None:
    rows = rows_of(seed, len(asked), ties=False)
    theirs = [
        HOST.choose(row[None].clone(), one.request, one.choice, [one.position])[0]
        for row, one in zip(rows, asked, strict=True)
    ]
    assert DEVICE.choose(rows, asked).tolist() == theirs


@given(st.integers(0, 1000), st.lists(requests.filter(lambda r: r.temperature > 0.0), min_size=1, max_size=4))
def test_ids_that_survive_are_the_hosts_even_where_scores_are_equal(seed: int, asked: list[CompletionRequest]) -> None:
    asked = [replace(request, top_p=min(request.top_p, 0.97)) for request in asked]  # keep the edge away from rounding
    rows = rows_of(seed, len(asked), ties=True)
    ours = device_sampling.survivors(rows, asked)
    for row, request, kept in zip(rows.numpy(), asked, ours, strict=True):
        theirs = survivors(row, request)
        assert kept.nonzero()[:, 0].tolist() == (list(range(row.size)) if theirs is None else sorted(theirs.tolist()))


@given(st.integers(0, 1000), st.lists(sampled_rows, min_size=2, max_size=5), st.data())
def test_a_row_does_not_see_its_neighbours(seed: int, asked: list[SampledRow], data: st.DataObject) -> None:
    rows, alone = rows_of(seed, len(asked), ties=False), data.draw(st.integers(0, len(asked) - 1))
    one = DEVICE.choose(rows[alone][None].clone(), [asked[alone]])
    assert DEVICE.choose(rows, asked)[alone] == one[0]


def test_more_rows_than_are_worked_on_at_once() -> None:
    count = 2 * device_sampling.AT_ONCE + 3
    request = CompletionRequest(prefix="x", temperature=1.0, seed=5)
    asked = [SampledRow(replace(request, temperature=number % 3 * 0.5), 0, Position(number)) for number in range(count)]
    rows = rows_of(1, count, ties=False)
    theirs = [HOST.choose(r[None].clone(), a.request, 0, [a.position])[0] for r, a in zip(rows, asked, strict=True)]
    assert DEVICE.choose(rows, asked).tolist() == theirs


def test_the_host_chooses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target, requests, expected = device_model(*CASES[0]), varied_requests(), plain(*CASES[0])
    rows: list[int] = []
    choose = DeviceSampler.choose

    def counted(self: DeviceSampler, logits, asked):  # type: ignore[no-untyped-def]
        assert len(logits) == len(asked)
        rows.append(len(asked))
        return choose(self, logits, asked)

    def refuse(*_: object) -> None:
        raise AssertionError("a row was chosen on the host")

    monkeypatch.setattr(DeviceSampler, "choose", counted)
    monkeypatch.setattr(Sampler, "choose", refuse)
    monkeypatch.setattr(Sampler, "pick", refuse)
    done = run(build(target, Mixed(target, requests, expected), max_batch=8), requests)
    assert texts(done) == texts(expected) and sum(rows) >= sum(len(one.token_ids) for one in done)
