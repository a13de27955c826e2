"""Device steps on a CPU: the same buckets, static buffers and padding as on a GPU, but without graph capture.

After any acceptance, rejection, batching, chunking and padding, logits and caches equal a whole prefill bit for bit,
and transformers' own attention to 1e-4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from codespec.backends.language_model import Rows
from codespec.backends.torch.cuda.graphs import BucketStep
from codespec.backends.torch.model import TorchModel
from codespec.startup.batch_invariance import find_variance
from tests.backends.rounds import Replay, Round, covering, fresh_prefill, rounds
from tests.backends.test_seam import eager_logits
from tests.tiny_models import LONGROPE_LIMIT, sample_ids, tiny_model

DTYPES = [torch.float32, torch.bfloat16]
LENGTH = 100
TRAITS = {  # features of each architecture
    "llama": "groups",
    "qwen2": "a window in one layer",
    "gemma2": "soft caps and a window",
    "gpt_oss": "sinks and a mixture of experts",
    "phi3": "a rotary chosen per request",
    "gpt2": "learned positions, transformers' own layers",
}


def on_device(architecture: str, dtype: torch.dtype = torch.float32, **change: Any) -> TorchModel:
    return tiny_model(architecture, dtype=dtype, steps="device", **change)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the sizes of the buckets used."""
    seen: list[int] = []
    plain = BucketStep.replay

    def watched(step: BucketStep) -> Tensor:
        seen.append(step.buffer.count)
        return plain(step)

    monkeypatch.setattr(BucketStep, "replay", watched)
    yield seen


@pytest.mark.parametrize("architecture", TRAITS)
def test_ragged_chunks_equal_eager(architecture: str, replays: list[int]) -> None:
    replay = Replay(on_device(architecture), LENGTH, eager_logits(architecture, LENGTH))
    replays.clear()
    assert replay.play(covering(LENGTH)) <= 1e-4
    assert replay.rows == 3 * LENGTH
    assert len(set(replays)) >= 4, "several buckets, some of them again and again"
    assert len(replays) >= 2 * len(set(replays))


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [(name, DTYPES[number % 2]) for number, name in enumerate(TRAITS) if name != "gpt_oss"],
    ids=str,
)
def test_rounds_equal_a_whole_prefill_bit_for_bit(architecture: str, dtype: torch.dtype) -> None:
    model = on_device(architecture, dtype)
    replay = Replay(model, LENGTH)
    assert replay.play(covering(LENGTH)) == 0.0

    @settings(max_examples=2)
    @given(rounds(20))
    def play(played: list[Round]) -> None:
        assert replay.play(played) == 0.0

    play()
    model.allocate(2, 64)
    assert find_variance(model) == ""


class Twins:
    """Two models of equal weights that must agree bit for bit: one with buckets, the other without.

    Before each step the padding's slot is filled with values that would poison every sum they took part in.
    """

    def __init__(self, architecture: str) -> None:
        self.bucketed, self.plain = on_device(architecture), on_device(architecture)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bucketed, name)

    def allocate(self, slots: int, capacity: int) -> None:
        self.bucketed.allocate(slots, capacity, graph_rows=96)
        self.plain.allocate(slots, capacity, graph_rows=0)

    def admit(self, slot: int, length: int) -> None:
        self.bucketed.admit(slot, length)
        self.plain.admit(slot, length)

    def rollback(self, slot: int, length: int) -> None:
        self.bucketed.rollback(slot, length)
        self.plain.rollback(slot, length)

    def forward(self, batch: Sequence[Rows]) -> Tensor:
        cache = self.bucketed.cache
        assert cache is not None
        for kind in (cache.keys, cache.values):
            for tensor in kind.values():
                tensor[cache.slots] = torch.nan
        found, wanted = self.bucketed.forward(batch), self.plain.forward(batch)
        assert torch.equal(found, wanted)
        return found


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
def test_static_buffers_equal_steps_as_they_come(architecture: str, replays: list[int]) -> None:
    twins = Twins(architecture)
    replay = Replay(cast("TorchModel", twins), LENGTH)

    @settings(max_examples=3)
    @given(rounds(20))
    def play(played: list[Round]) -> None:
        assert replay.play(played) == 0.0

    play()
    assert set(replays) <= {*twins.bucketed._runner.buckets.rows} and len(set(replays)) >= 5  # type: ignore[union-attr]


def test_more_rows_than_any_bucket_run_as_they_are(replays: list[int]) -> None:
    model, ids = on_device("llama"), sample_ids(60)
    whole, _ = fresh_prefill(model, ids)
    replays.clear()
    model.allocate(1, 60, graph_rows=12)
    chunks = [model.forward([Rows(0, 0, ids[:40], keep=40)]), model.forward([Rows(0, 40, ids[40:50], keep=10)])]
    assert torch.equal(torch.cat(chunks), whole[:50])
    assert replays == [12]


def test_logits_stay_the_callers_own() -> None:
    """The next step of the same bucket overwrites its logits buffer."""
    model, ids = on_device("llama"), sample_ids(12)
    model.allocate(2, 32)
    first = model.forward([Rows(0, 0, ids[:6], keep=6)])
    kept = first.clone()
    second = model.forward([Rows(1, 0, ids[6:], keep=6)])
    assert torch.equal(first, kept) and not torch.equal(first, second)
    assert model.forward([Rows(0, 0, ids[:6], keep=0)]).shape == (0, 512)


def test_each_row_turns_by_its_own_request() -> None:
    """Side by side in one step, and in slots that formerly had the other's frequencies."""
    model, ids = on_device("phi3"), sample_ids(30)
    lengths, alone = (LONGROPE_LIMIT, LONGROPE_LIMIT + 50), []
    for length in lengths:
        model.allocate(2, 128)
        model.admit(0, length)
        alone.append(model.forward([Rows(0, 0, ids, keep=30)]))
    assert not torch.equal(*alone)
    for order in ((0, 1), (1, 0)):
        for slot, which in enumerate(order):
            model.admit(slot, lengths[which])
        together = model.forward([Rows(slot, 0, ids, keep=30) for slot in (0, 1)])
        assert torch.equal(together, torch.cat([alone[which] for which in order]))


def test_a_fork_goes_on_like_its_source() -> None:
    model, ids = on_device("qwen2"), sample_ids(50)
    whole, _ = fresh_prefill(model, ids)
    model.allocate(3, 64)
    model.forward([Rows(1, 0, ids[:30], keep=0)])
    model.fork(1, 2, 20)
    parts = model.forward([Rows(2, 20, ids[20:], keep=30), Rows(0, 0, ids[:3]), Rows(1, 30, ids[30:], keep=20)])
    assert torch.equal(parts[:30], whole[20:]) and torch.equal(parts[31:], whole[30:])
    assert model.cache is not None and model.cache.lengths == [3, 50, 50]


def test_the_slot_of_padding_is_no_slot_of_the_callers() -> None:
    plain, model = tiny_model("llama"), on_device("llama")
    plain.allocate(3, 64)
    model.allocate(3, 64)
    assert plain.cache is not None and model.cache is not None
    assert model.cache.slots == 3 and model.cache.nbytes == plain.cache.nbytes
    assert [len(tensor) for tensor in model.cache.keys.values()] == [4, 4]
    assert [len(tensor) for tensor in plain.cache.values.values()] == [3, 3]
