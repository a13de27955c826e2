"""In device steps every row's choice is made on the device of the logits, and none on the host."""

from __future__ import annotations

import pytest

from codespec.verify.device_sampling import DeviceSampler
from codespec.verify.sampling import Sampler
from tests.engine.test_device_steps import CASES, device_model, plain
from tests.pairs import Mixed, build, run, texts, varied_requests


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
