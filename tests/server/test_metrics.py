"""/metrics is consistent with the requests' own statistics and with the replies to clients, at every moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from codespec_grammars import Context, language_names
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from codespec.api.types import Stats
from codespec.engine.job import Job
from codespec.sequence import Sequence
from codespec.server.daemon import Histogram
from tests.cli.processes import TOKEN
from tests.pairs import prompts
from tests.server.daemons import Served, serving, serving_load, wait_for
from tests.server.fakes import FakeEngine
from tests.server.test_faults import Loading
from tests.server.test_jobs import PATH, Asking, body, ends_of, held

Labels = frozenset[tuple[str, str]]


class Scrape:
    """One reply of /metrics, parsed by Prometheus' own parser."""

    def __init__(self, served: Served, **headers: str) -> None:
        reply = served.ask("GET", "/metrics", **headers)
        assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        self.families = {family.name: family for family in text_string_to_metric_families(reply.body.decode())}
        self.values: dict[tuple[str, Labels], float] = {}
        for family in self.families.values():
            assert family.name.startswith("codespec:") and family.documentation and family.type != "unknown"
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.values, "a series is there twice"
                self.values[key] = sample.value

    def by(self, name: str, *labels: str) -> Counter[tuple[str, ...]]:
        """Return a metric's sums by some of its labels."""
        found: Counter[tuple[str, ...]] = Counter()
        for (known, where), value in self.values.items():
            if known == f"codespec:{name}":
                found[tuple(dict(where)[label] for label in labels)] += value
        return +found

    def sum(self, name: str) -> float:
        """Return a metric's sum."""
        return self.by(name)[()]

    def of(self, name: str, label: str) -> dict[str, float]:
        """Return a metric by one label, without zeros."""
        return {key[0]: value for key, value in self.by(name, label).items()}

    def since(self, before: Scrape) -> Scrape:
        """Return the increase since an earlier scrape."""
        found = object.__new__(Scrape)
        found.values = {key: value - before.values.get(key, 0) for key, value in self.values.items()}
        return found


@pytest.fixture
def submitted(toy: Served, monkeypatch: pytest.MonkeyPatch) -> list[Sequence]:
    """Record all sequences that the engine starts from now on."""
    assert toy.idle() and toy.source.loaded is not None
    engine, found = toy.source.loaded.engine, list[Sequence]()
    start: Callable[[Job], None] = engine.start

    def note(job: Job) -> None:
        start(job)
        found.extend(job.sequences)

    monkeypatch.setattr(engine, "start", note)
    return found


def test_a_mixed_run_adds_up(toy: Served, submitted: list[Sequence]) -> None:
    """Finished, superseded, abandoned and rejected requests: the counters equal the sums over all sequences."""
    before = Scrape(toy)
    told = mixed_run(toy)
    assert toy.idle() and wait_for(lambda: all(sequence.finish_reason for sequence in submitted))
    found, stats = Scrape(toy).since(before), Stats()
    for sequence in submitted:
        stats.add(sequence.stats)
    drafts = stats.rounds_full + stats.rounds_partial + stats.rounds_none
    assert found.sum("spec_decode_num_drafts_total") == drafts
    assert found.sum("generation_tokens_total") == stats.committed
    assert found.sum("prompt_tokens_total") == stats.prompt_tokens
    asked = {"target": stats.prompt_tokens, "drafter": stats.drafter_prompt_tokens}
    cached = {"target": stats.cached_tokens, "drafter": stats.drafter_cached_tokens}
    assert found.of("prefix_cache_queries_total", "model") == asked and min(asked.values()) > 0
    assert found.of("prefix_cache_hits_total", "model") == +Counter(cached) and cached["target"] > 0
    for name, count in (("draft_tokens", "drafted"), ("accepted_tokens", "accepted")):
        metric = f"spec_decode_num_{name}_total"
        assert found.sum(metric) == getattr(stats, count) > 0
        for label, parts in (("proposer", stats.by_source), ("context", stats.by_context)):
            assert found.of(metric, label) == +Counter({key: getattr(part, count) for key, part in parts.items()})
    plain = stats.rounds - drafts
    outcomes = {"plain": plain, "full": stats.rounds_full, "partial": stats.rounds_partial, "none": stats.rounds_none}
    assert found.of("rounds_total", "outcome") == +Counter(outcomes) and len(outcomes) == 4
    check_positions(found, stats)
    check_ends(found, told, submitted)


def check_positions(found: Scrape, stats: Stats) -> None:
    """Assert that acceptance by position and the chosen lengths count the same rounds."""
    by_position = found.of("spec_decode_num_accepted_tokens_per_pos_total", "position")
    counts = [by_position[str(position)] for position in range(len(by_position))]
    assert counts == sorted(counts, reverse=True) and sum(counts) == stats.accepted
    assert found.sum("draft_length_count") == stats.rounds and found.sum("draft_length_sum") == stats.drafted


def check_ends(found: Scrape, told: Counter[str], submitted: list[Sequence]) -> None:
    """Assert that the counted endings match the clients' view."""
    finished, cancelled = (
        found.of("request_success_total", "finished_reason"),
        found.of("requests_cancelled_total", "reason"),
    )
    assert {reason: finished.get(reason, 0) for reason in ("stop", "length")} == {
        reason: told[reason] for reason in ("stop", "length")
    }
    assert cancelled.get("superseded", 0) == told["cancelled"] > 0 and cancelled["disconnected"] == told["gone"] > 0
    ended = told["stop"] + told["length"]
    assert found.sum("e2e_request_latency_seconds_count") == found.sum("request_queue_time_seconds_count") == ended
    assert found.sum("time_to_first_token_seconds_sum") <= found.sum("e2e_request_latency_seconds_sum")
    assert 0 < found.sum("time_to_first_token_seconds_count") <= ended
    assert found.sum("requests_total") == ended + told["cancelled"] + told["gone"] + told["refused"]
    assert found.of("requests_failed_total", "fault") == +Counter(request=told["refused"])


def mixed_run(served: Served) -> Counter[str]:
    """Send requests with every outcome; return the number of each, as the clients saw it."""
    told = Counter[str]()
    for number in range(4):
        told += one_of_each(served, prompts(2)[number % 2][:200], number)
        assert served.idle()
    return told


def one_of_each(served: Served, prefix: str, number: int) -> Counter[str]:
    """Two requests that finish, one superseded by a newer one, one abandoned, one rejected."""
    values = {"prefix": prefix, "max_tokens": 12, "shape": "raw", "path": ("a.py", "b.js", "c.txt")[number % 3]}
    asking = [Asking(served, PATH, {**values, "seed": seed, "temperature": 0.7}) for seed in range(2)]
    asking.append(Asking(served, PATH, {**values, "document": "d", "max_tokens": 300}))
    assert wait_for(lambda: is_open(served, 300))
    asking.append(Asking(served, PATH, {**values, "document": "d", "seed": 9}))
    going = served.open(PATH, {**values, "max_tokens": 310, "seed": 1000 + number})
    assert wait_for(lambda: is_open(served, 310))
    refused = served.post(PATH, {**values, "max_tokens": 100_000}).status == 400
    told = Counter(reason for one in asking for reason in ends_of(one.result()))
    going.close()
    return told + Counter(gone=1, refused=refused)


def is_open(served: Served, tokens: int) -> bool:
    """Return whether a request for this many tokens is running."""
    return any(handle.request.max_tokens == tokens for handle in list(served.daemon._open))


def test_a_client_makes_no_new_label_values(toy: Served) -> None:
    values = {"prefix": prompts(1)[0][:80], "max_tokens": 2, "shape": "raw", "document": 'd"\n'}
    for number, name in enumerate(('evil"} 1', "a\\b", "klingon", "python", "c++")):
        assert toy.post(PATH, {**values, "language": name, "path": f"x.{name[:3]}", "seed": number}).status == 200
    found = Scrape(toy)
    known = {"proposer": {"suffix", "draft_model", "none"}, "context": {*Context}, "model_name": {"toy"}}
    known["language"] = {*language_names(), "unknown"}
    for _, labels in found.values:
        for label, value in labels:
            assert label not in known or value in known[label], (label, value)
    assert len(found.of("spec_decode_num_drafts_total", "language")) >= 2


def test_why_requests_were_cut_short_or_turned_away() -> None:
    engine = FakeEngine()
    with serving(engine, slots=1, queue=3) as served:
        one, old, late = held(engine, served, body("one"), body("old", document="d"), body("late", deadline_ms=1))
        new = Asking(served, PATH, body("new", document="d"))
        assert wait_for(lambda: served.daemon.num_open == 4)
        assert served.post(PATH, body("too many")).status == 429
        engine.gate.set()
        assert [ends_of(each.result()) for each in (one, old, late, new)] == [
            ["length"],
            ["cancelled"],
            ["deadline"],
            ["length"],
        ]
        leaving = served.open(PATH, body("leaving", max_tokens=400))
        assert wait_for(lambda: served.daemon.num_open == 1)
        leaving.close()
        assert served.idle() and wait_for(lambda: served.source.num_running == 0)  # its round ends after the request
        found = Scrape(served)
    assert found.of("requests_cancelled_total", "reason") == {"superseded": 1, "disconnected": 1, "deadline": 1}
    assert found.of("requests_refused_total", "reason") == {"queue_full": 1}
    assert found.of("request_success_total", "finished_reason") == {"length": 2, "cancelled": 1, "deadline": 1}
    assert found.sum("num_requests_running") == found.sum("num_requests_waiting") == 0


def test_whose_fault_an_error_was() -> None:
    with serving(FakeEngine()) as served:
        for prefix in ("REFUSED", "UNTAKEN", "BOOM"):
            served.post(PATH, body(prefix))
        assert Scrape(served).of("requests_failed_total", "fault") == {"request": 1, "engine": 2}


def test_a_scrape_waits_for_no_round() -> None:
    engine = FakeEngine()
    with serving(engine, slots=1) as served:
        asking = held(engine, served, body("one"), body("two"))
        found = Scrape(served)
        assert (found.sum("num_requests_running"), found.sum("num_requests_waiting")) == (1, 1)
        assert asking[0].is_alive()
        engine.gate.set()


def test_a_daemon_without_a_model_says_so() -> None:
    load = Loading()
    with serving_load(load, ready=False) as served:
        for path in (PATH, "/v1/completions", "/completion", "/api/generate", "/v1/codespec/edit"):
            assert served.post(path, {**body("x"), "prompt": "x"}).status == 503
        for path in ("/health", "/v1/models", "/props", "/api/tags"):  # they are no requests for text
            assert served.ask("GET", path).status == 503
        found = Scrape(served)
        assert found.of("state", "state") == {"starting": 1} and found.of("requests_refused_total", "reason") == {
            "not_ready": 5
        }
        assert served.ask("GET", "/v1/codespec/stats").json["daemon"]["state"] == "starting"
        load.go.set()
        assert wait_for(lambda: Scrape(served).of("state", "state") == {"ready": 1})


def test_the_json_holds_the_same_numbers(toy: Served) -> None:
    assert toy.idle()
    found, told = Scrape(toy), toy.ask("GET", "/v1/codespec/stats").json
    samples = [sample for family in told["families"] for sample in family["samples"]]
    assert {(s["name"], frozenset(s["labels"].items())): s["value"] for s in samples} == found.values
    assert told["daemon"]["state"] == "ready" and told["daemon"]["model"] == "toy"


@pytest.mark.parametrize("path", ["/metrics", "/v1/codespec/stats"])
def test_it_is_guarded_like_everything(path: str) -> None:
    with serving(FakeEngine(), token=TOKEN) as served:
        assert served.ask("GET", path).status == 401
        assert served.ask("GET", path, Authorization=f"Bearer {TOKEN}").status == 200
        assert served.ask("GET", path, Authorization=f"Bearer {TOKEN}", Host="evil.example").status == 403
        assert served.post(path, {}, Authorization=f"Bearer {TOKEN}").status == 405


@given(st.lists(st.floats(0, 20), max_size=30))
def test_a_histogram_counts_right(values: list[float]) -> None:
    histogram = Histogram((0, 1, 2.5, 10))
    for value in values:
        histogram.observe(value)
    buckets = histogram.buckets()
    assert [end for end, _ in buckets] == ["0", "1", "2.5", "10", "+Inf"] and histogram.sum == pytest.approx(
        sum(values)
    )
    for end, count in buckets:
        assert count == sum(value <= float(end) for value in values)
