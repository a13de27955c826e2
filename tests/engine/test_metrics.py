"""The engine's counters are consistent at every moment, and the plain cost next to them is the cost table's."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from codespec.api.types import Completion, CompletionRequest
from codespec.engine.metrics import Metrics, RoundRecord
from codespec.sequence import Candidates, Verdict
from codespec.speculation.cost_policy import CostPolicy
from codespec.speculation.policy import FixedLength
from tests.parrot import Parrot, Prompter, parrot_engine
from tests.speculation.sequences import sequence, table
from tests.toy_tokenizers import toy_tokenizer

PREFIX, SPOKEN = "x = 1\n", "y = 2\nz = [3, 4, 5]\nprint(x, y, z)\n"
PLAIN_MS = 1000.0  # per round, as in `table`


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Switch threads as often as possible."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_a_snapshots_numbers_belong_together(quick_switches: None) -> None:
    """While one thread counts rounds, another takes snapshots, each of which must be consistent."""
    metrics, made, over = Metrics(), sequence("comment", "python"), threading.Event()

    def count() -> None:
        while not over.is_set():
            metrics.count_round(made, Candidates((1, 2, 3), "suffix"), Verdict(2, (1, 2, 9)))

    counting = threading.Thread(target=count)
    counting.start()
    looks, end = {}, time.monotonic() + 30
    while len(looks) < 30 and time.monotonic() < end:
        look = metrics.snapshot()
        looks[look.committed] = look
        time.sleep(0)
    over.set()
    counting.join()
    for look in looks.values():
        found = look.tallies
        rounds = found["rounds", "partial"]
        assert look.committed == 3 * rounds and found["length", "suffix", 3] == rounds
        assert found["drafts", "suffix", "comment", "unknown"] == rounds
        assert found["draft_tokens", "suffix", "comment", "unknown"] == 3 * rounds
        assert found["accepted_at", "suffix", 0] == found["accepted_at", "suffix", 1] == rounds
    assert len(looks) == 30, "too little was counted meanwhile"


def test_a_snapshot_is_a_copy() -> None:
    metrics = Metrics()
    before = metrics.snapshot()
    metrics.count_round(sequence(), Candidates((1,), "suffix"), Verdict(1, (1, 2)))
    metrics.count_step(RoundRecord())
    assert (before.steps, before.committed, +before.tallies) == (0, 0, {}) and metrics.snapshot() == metrics != before


@pytest.mark.parametrize(
    ("drafted", "accepted", "message"), [(0, 0, "plain"), (3, 0, "none"), (3, 2, "partial"), (3, 3, "full")]
)
def test_outcomes(drafted: int, accepted: int, message: str) -> None:
    metrics = Metrics()
    metrics.count_round(
        sequence(), Candidates(tuple(range(drafted)), "suffix"), Verdict(accepted, (0,) * (accepted + 1))
    )
    assert metrics.tallies["rounds", message] == 1
    assert metrics.tallies["length", "suffix" if drafted else "none", drafted] == 1


def complete(sizes: tuple[int, ...] | None, count: int = 1, tokens: int = 13) -> tuple[list[Completion], Metrics]:
    """Return the parrot's completions and the engine's metrics, under a policy that knows the cost of a plain round."""
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    engine = parrot_engine(parrot, Prompter(parrot, sizes) if sizes else None)
    policy = CostPolicy(table(), ("scripted",))
    policy.plan = FixedLength(8).plan  # type: ignore[method-assign]
    engine.policy = policy
    done = engine.complete([CompletionRequest(prefix=PREFIX, max_tokens=tokens) for _ in range(count)])
    return done, engine.metrics


def test_plain_cost_is_one_round_a_token() -> None:
    """The token of the prompt's own step is free; the others cost what the table says."""
    for sizes, free in ((None, 1), ((3,), 4)):
        (done,), metrics = complete(sizes)
        assert done.stats.plain_ms == pytest.approx((13 - free) * PLAIN_MS)
        assert 0 < done.stats.decode_ms <= done.stats.total_ms
        assert metrics.plain_s * 1000 == pytest.approx(done.stats.plain_ms)
        assert metrics.goodput_s * 1000 == pytest.approx(done.stats.decode_ms)
        assert (metrics.goodput_tokens, metrics.committed) == (13 - free, 13)


def test_a_batch_pays_a_round_together() -> None:
    """With three at a time, each request's plain round is the batch's, and together they need no more rounds."""
    done, metrics = complete(None, count=3)
    alone = 12 * (table().target.seconds(3, 3, 0) * 1000)
    assert [choice.stats.plain_ms for choice in done] == [pytest.approx(alone)] * 3
    assert metrics.plain_s * 1000 == pytest.approx(alone) and metrics.goodput_tokens == 36


def test_prompts_are_told_from_writing() -> None:
    _, metrics = complete((3,))
    assert metrics.prefilled == len(PREFIX) and metrics.prefill_s > 0 and metrics.verify_s > 0


def test_waiting_for_a_slot_is_part_of_the_whole() -> None:
    """Five requests, four slots: one waits until another finishes."""
    done, _ = complete(None, count=5)
    longest = max(choice.stats.queue_ms for choice in done)
    assert longest >= min(choice.stats.decode_ms for choice in done)
    assert all(0 <= c.stats.queue_ms <= c.stats.first_piece_ms <= c.stats.total_ms for c in done)


def test_where_no_table_is_nothing_is_claimed() -> None:
    assert FixedLength(3).seconds(1) == 0
    rule = CostPolicy(table(), ("suffix",))
    assert rule.seconds(2, 1, 5) > rule.seconds(1) > 0
    parrot = Parrot(toy_tokenizer("bytes"), PREFIX + SPOKEN)
    stats = parrot_engine(parrot).complete([CompletionRequest(prefix=PREFIX, max_tokens=5)])[0].stats
    assert stats.plain_ms == stats.decode_ms == 0
