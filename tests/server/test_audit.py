"""The audit: which completions are decoded again, the reaction to a difference, and that nothing is learned from it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from codespec.contract.types import Completion, CompletionRequest, DoneEvent, Stats
from codespec.engine.engine import Engine
from codespec.engine.queue import Job, Priority
from codespec.proposers.chain import ChainProposer
from codespec.proposers.suffix import SuffixProposer
from codespec.sequence import Verdict
from codespec.server.audit import MOST_FILES, Audit, first_difference, is_eligible, remove_oldest
from codespec.server.dispatcher import Dispatcher
from codespec.server.loading import Loaded
from codespec.verify.verifier import Turn
from tests.pairs import build, cancel, model, prompts, varied_requests
from tests.server.daemons import serving_load, wait_for
from tests.server.test_jobs import PATH, body
from tests.server.test_metrics import Scrape
from tests.server.test_prefetch import REQUEST, Harness

TWINS = count(700)


class AuditHarness(Harness):
    """A harness that decodes each `every`-th completion again, as soon as it is idle."""

    def __init__(self, every: int = 1, engine: Any = None, prefetch: bool = False, slots: int = 4) -> None:
        super().__init__(prefetch, slots)
        self.engine = engine or self.engine
        if engine is None:
            self.engine.drafted = 3
        self.dispatcher = Dispatcher(self.engine, prefetch, audit=Audit(self.engine, every, {"target": "toy"}))
        self.results = self.dispatcher.audit.results

    def idle(self, most: int = 2000) -> None:
        """Run until nothing is left to do."""
        for _ in range(most):
            if self.dispatcher.idle_for is None:
                return
            self.dispatcher.round()
            self.deliver()
        raise AssertionError("it never ends")

    @property
    def audits(self) -> list[Job]:
        """Return the audits in the queue."""
        return self.dispatcher.jobs_of(Priority.AUDIT)

    def until_audited(self) -> None:
        """Run until an audit has begun to write."""
        for _ in range(200):
            if any(sequence.num_generated for job in self.audits for sequence in job.sequences):
                return
            self.dispatcher.round()
            self.deliver()
        raise AssertionError("nothing is decoded again")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("codespec.server.audit.QUIET", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def toy_engine(**settings: Any) -> Engine:
    twin = next(TWINS)
    target, drafter = model("llama", "gpt2", twin=twin), model("gpt_neox", "bytes", seed=1, twin=twin)
    engine = build(target, drafter=drafter, **{"max_batch": 4, "draft_tokens": 3, "prefill_chunk": 64, **settings})
    engine.proposer = ChainProposer([SuffixProposer(), engine.proposer])
    return engine


def break_it(engine: Engine) -> None:
    """Make speculation commit one wrong token per round from a text's ninth token on."""
    judge = engine._verifier._judge

    def misjudge(turn: Turn, view: Any) -> Verdict:
        verdict = judge(turn, view)
        if not turn.candidates.ids or turn.sequence.num_generated < 8:
            return verdict
        return replace(verdict, committed=(*verdict.committed[:-1], (verdict.committed[-1] + 1) % 200))

    engine._verifier._judge = misjudge  # type: ignore[method-assign]


def test_what_is_exact_comes_out_the_same() -> None:
    """Greedy and sampled, alternatives, shapes, healed words, stops, suffixes; deadlines are left out."""
    harness = AuditHarness(engine=toy_engine())
    shaped: dict[str, Any] = {"shape": "block", "heal": True, "path": "a.py", "document": "d", "suffix": "\n\nx = 1\n"}
    asked = [*varied_requests(deadline_ms=600_000.0), *varied_requests(**shaped)[:3], *varied_requests(stop=("e",))[:2]]
    drafted = 0
    for request in asked:
        handle = harness.admit(replace(request, max_tokens=24))
        harness.idle()
        done = [one.completion for one in harness.found[handle] if isinstance(one, DoneEvent)]
        drafted += any(completion.stats.drafted for completion in done)
    assert harness.results == {"same": drafted, "different": 0, "abandoned": 0} and drafted >= 10
    assert harness.engine.mode == "exact" and not harness.engine.notes


def test_the_prompt_is_the_one_that_the_document_had() -> None:
    """A long document's window keeps its former begin instead of a new one."""
    engine, text = toy_engine(context=256), "".join(prompts(8))
    harness, asked = AuditHarness(every=2, engine=engine), REQUEST
    for end in (900, 1040):
        asked = replace(REQUEST, prefix=text[:end], shape="raw", max_tokens=24)
        harness.admit(asked)
        harness.rounds()
    harness.dispatcher.round()
    (job,) = harness.audits
    (fresh,) = engine._admission.admit(replace(asked, document=""))
    assert fresh.prompt_ids != job.sequences[0].prompt_ids == job.audited[0].prompt_ids
    harness.idle()
    assert harness.results == {"same": 1, "different": 0, "abandoned": 0}


def test_nothing_learns_from_it_and_nothing_counts_it() -> None:
    engine = toy_engine()
    harness = AuditHarness(engine=engine)
    harness.admit(replace(REQUEST, prefix=prompts()[3], shape="raw", n=2, temperature=0.7))
    harness.rounds()
    kept, before = engine.caches["target"].tokens, engine.metrics.snapshot()
    engine.policy, engine.proposer = None, Mock(caches={})  # type: ignore[assignment]
    harness.idle()
    assert harness.results["same"] == 1 and not engine.proposer.method_calls
    after = engine.metrics.snapshot()
    for name in ("committed", "totals", "tallies", "goodput_tokens"):
        assert getattr(after, name) == getattr(before, name)
    assert after.steps > before.steps and engine.caches["target"].tokens == kept, "its slot is free for anybody"


def test_the_next_keystroke_finds_its_prompt_warm() -> None:
    """Most clients name no document; an audit must not continue in their slot."""
    engine = toy_engine()
    harness = AuditHarness(engine=engine)
    request = replace(REQUEST, prefix=prompts()[3], shape="raw", document="")
    harness.admit(request)
    harness.idle()
    assert harness.results["same"] == 1
    (next_one,) = engine.submit(replace(request, prefix=request.prefix + "x"))
    engine.step()
    assert next_one.stats.cached_tokens >= 0.8 * len(next_one.prompt_ids)
    cancel(engine, next_one)


def test_a_difference_is_loud(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    engine = toy_engine()
    harness, request = AuditHarness(engine=engine), replace(REQUEST, prefix=prompts()[3], shape="raw", max_tokens=30)
    break_it(engine)
    handle = harness.admit(request)
    harness.idle()
    assert harness.results == {"same": 0, "different": 1, "abandoned": 0} and engine.mode == "fast"
    (file,) = (tmp_path / "codespec" / "audit").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (line,) = caplog.messages
    assert str(file) in line and "exact mode does not hold here" in line and request.prefix[:20] not in line
    check_file(json.loads(file.read_text())["content"], request, harness.end(handle))
    (note,) = engine.notes
    assert note.startswith("exact mode does not hold here") and "fast mode is used" in note
    engine.leave_exact("again")
    assert len(engine.notes) == 1
    harness.admit(replace(request, seed=1))
    harness.idle()
    assert sum(harness.results.values()) == 1, "in fast mode nothing is promised"


def check_file(content: dict[str, Any], request: CompletionRequest, done: Completion) -> None:
    """Assert that the file has everything needed to reproduce the difference."""
    (choice,) = content["choices"]
    drafted, plain, place = choice["with_drafts"], choice["plain"], choice["first_different_token"]
    assert content["request"]["prefix"] == request.prefix and content["request"]["seed"] == request.seed
    assert (tuple(drafted["token_ids"]), drafted["text"]) == (done.token_ids, done.text)
    (right,) = toy_engine().complete([replace(request, speculate=False)])
    assert (tuple(plain["token_ids"]), plain["text"]) == (right.token_ids, right.text)
    assert drafted["token_ids"][:place] == plain["token_ids"][:place] and place >= 8
    assert drafted["token_ids"][place] != plain["token_ids"][place]
    facts = {"target", "codespec", "torch", "dtype", "device", "threads", "processor", "kernel", "notes"}
    facts |= {"prompt_ids", "held"}
    assert facts <= content.keys() and content["dtype"] == "float32" and content["target"] == "toy"


def test_a_file_that_can_not_be_written_is_said(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    engine = toy_engine()
    harness = AuditHarness(engine=engine)
    break_it(engine)
    harness.admit(replace(REQUEST, prefix=prompts()[3], shape="raw", max_tokens=30))
    harness.idle()
    (line,) = caplog.messages
    assert "can't be written to" in line and "Not a directory" in line
    assert harness.results["different"] == 1 and engine.mode == "fast"
    handle = harness.admit(replace(REQUEST, shape="raw"))
    harness.rounds()
    assert harness.end(handle).finish_reason == "length", "and the daemon goes on"


def job_of(reasons: tuple[Any, ...], drafted: int = 1, **change: Any) -> Job:
    """Return a finished job."""
    job = Job(replace(REQUEST, n=len(reasons), **change))
    done = [Completion("x", (), reason, Stats(drafted=drafted), n) for n, reason in enumerate(reasons)]
    job.events += [DoneEvent(completion.choice, completion) for completion in done]
    return job


def test_what_is_compared() -> None:
    assert is_eligible(job_of(("stop",))) and is_eligible(job_of(("length", "stop"), temperature=0.5))
    assert not is_eligible(job_of(("deadline",))) and not is_eligible(job_of(("stop", "cancelled")))
    assert not is_eligible(job_of(("stop",), drafted=0))
    assert not is_eligible(job_of(("stop",), rule="rejection", temperature=0.5))


def test_the_oldest_files_go(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 3):
        (tmp_path / f"2026{number:02}.json").touch()
    remove_oldest(tmp_path)
    left = sorted(file.name for file in tmp_path.iterdir())
    assert len(left) == MOST_FILES and left[0] == "202603.json"


def test_the_first_difference() -> None:
    assert first_difference("abc", "abd") == 2 and first_difference((1, 2), (1, 2, 3)) == 2
    assert first_difference("", "") is None


def test_the_daemon_tells() -> None:
    with serving_load(lambda _: Loaded(toy_engine(), "toy", 512, 4, audit_every=2)) as served:
        for number in range(2):
            served.post(PATH, body(prompts()[3], seed=number, max_tokens=30))
        assert wait_for(lambda: Scrape(served).of("audit_total", "result") == {"same": 1})
        found = Scrape(served)
        assert found.of("mode", "mode") == {"exact": 1} and found.sum("requests_total") == 2
        health = served.ask("GET", "/health").json
        assert (health["mode"], health["notes"]) == ("exact", [])
