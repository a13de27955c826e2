"""The text is independent of the draft length policy: every policy, greedy and sampled, alone and in a batch."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pytest

from codespec.api.types import Completion, CompletionRequest
from codespec.engine.engine import Engine
from codespec.files import Kept
from codespec.speculation.cost_model import CostTable, RunningCosts
from codespec.speculation.cost_policy import CostPolicy
from tests.kin import cousin
from tests.pairs import Mixed, build, model, prompts, run, texts, total
from tests.speculation.sequences import table

POLICIES = ("cost+syntax", "cost", "fixed:3", "ds4-80")
CAPS = {"python.comment": 1, "statement": 3, "unknown": 2}


@pytest.fixture(autouse=True)
def cheap_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a table in which drafting pays; the tiny models' own would never draft, and depends on the machine."""
    monkeypatch.setattr("codespec.startup.tuning.price", lambda target, drafters, notes, heads: table(0.05, 0.02))


def requests(temperature: float) -> list[CompletionRequest]:
    """Four requests of different lengths and languages; two repeat themselves, for the lookup."""
    paths = ("a.py", "b.go", "c.unknown", "d.py")
    return [
        CompletionRequest(
            prefix=prompts()[2 + n][: 80 + 40 * n] * (1 + n % 2),
            path=path,
            max_tokens=20 + 3 * n,
            temperature=temperature,
            seed=n,
        )
        for n, path in enumerate(paths)
    ]


@cache
def plain(temperature: float) -> list[Completion]:
    return run(build(model("llama", "bytes"), max_batch=1), requests(temperature), together=False, speculate=False)


def engine(policy: str, batch: int, **settings: object) -> Engine:
    drafter = cousin("llama", noise=0.03)
    return build(
        model("llama", "bytes"),
        drafter=drafter,
        proposers="chain",
        policy=policy,
        draft_tokens=6,
        max_batch=batch,
        learn=False,
        **settings,
    )


@pytest.mark.parametrize(
    ("policy", "temperature", "batch"), [("cost+syntax", 0.0, 1), *((policy, 0.8, 4) for policy in POLICIES)]
)
def test_no_policy_changes_the_text(policy: str, temperature: float, batch: int) -> None:
    with_policy = engine(policy, batch)
    done = run(with_policy, requests(temperature), together=batch > 1)
    assert texts(done) == texts(plain(temperature))
    stats = total(done)
    assert stats.drafted >= 30 and 0 < stats.accepted < stats.drafted
    assert stats.by_source["draft_model"].drafted > 0
    assert stats.rounds < stats.committed
    assert sum(counts.drafted for counts in stats.by_context.values()) == stats.drafted
    followed = set(stats.by_context) - {"unknown"}
    assert bool(followed) == (policy in ("cost+syntax", "ds4-80")) == (stats.context_ms > 0.1), stats.by_context


@pytest.mark.parametrize("policy", ["cost+syntax", "fixed:3"])
def test_a_users_caps_change_no_text_and_hold(policy: str) -> None:
    capped = engine(policy, 1, caps=CAPS)
    done = []
    for request in requests(0.0):
        longest = 0
        for event in capped.stream(request):
            if hasattr(event, "drafted") and request.path == "c.unknown":
                longest = max(longest, event.drafted)
            if hasattr(event, "completion"):
                done.append(event.completion)
        assert longest <= 2
    assert texts(done) == texts(plain(0.0)) and total(done).drafted >= 20


def test_rounds_say_why() -> None:
    reasons = [e.reason for e in engine("cost+syntax", 1).stream(requests(0.0)[0]) if hasattr(e, "reason")]
    assert reasons and all(" 0." in reason and "(n=" in reason and "→" in reason for reason in reasons)


def test_unguessable_text_is_hardly_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proposer that is always wrong, the cost policy soon stops verifying, while a fixed length continues.

    The table stays: a round of a tiny model takes as long with seven rows as with one, so measured drafts are free.
    """
    monkeypatch.setattr(RunningCosts, "took", lambda *_: False)
    target = model("llama", "bytes")
    asked = [replace(request, max_tokens=60) for request in requests(0.0)]
    expected = run(build(target, max_batch=1), asked, together=False, speculate=False)
    verified = {}
    for policy in ("cost+syntax", "fixed:6"):
        wrong = Wrong(target, asked, expected)
        guessing = build(target, wrong, policy=policy, proposers="suffix", draft_tokens=6, max_batch=1, learn=False)
        done = run(guessing, asked, together=False)
        assert texts(done) == texts(expected)
        verified[policy] = total(done).drafted
    assert verified["cost+syntax"] < 0.2 * verified["fixed:6"]


class Wrong(Mixed):
    """Drafts the right tokens, each replaced by the next id."""

    def ahead(self, sequence, cap):  # type: ignore[no-untyped-def]
        return tuple(number ^ 1 for number in super().ahead(sequence, cap))


def test_what_was_learned_goes_on_from_engine_to_engine(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    seen = []
    for _ in range(2):
        learning = build(
            model("llama", "bytes"),
            drafter=cousin("llama", noise=0.03),
            proposers="chain",
            policy="cost",
            draft_tokens=6,
        )
        assert isinstance(learning.policy, CostPolicy)
        seen.append(learning.policy.acceptance.seen("draft_model", ""))
        assert texts(run(learning, requests(0.0))) == texts(plain(0.0))
        learning.close()
    assert seen[0] == 0.0 < seen[1] and len(list(tmp_path.rglob("*.json"))) == 1


def test_costs_follow_the_rounds_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    made = build(model("llama", "bytes"), drafter=cousin("llama"), proposers="chain", policy="cost", learn=True)
    run(made, requests(0.0), together=False)
    made.close()
    (file,) = (tmp_path / "codespec" / "costs").iterdir()
    kept = Kept(file, "", CostTable.from_dict, asdict).load([])
    assert kept is not None and kept.target.seconds(1) < 0.5 * table(0.05, 0.02).target.seconds(1), (
        "no forward took a second"
    )
