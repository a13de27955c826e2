"""What /metrics and /v1/codespec/stats tell: vLLM's names under our prefix, and what only speculation has.

Knows what every number means; reads the engine's by a snapshot, so that a scrape never waits for a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aiohttp import web

from codespec import __version__
from codespec.engine.metrics import Key, Metrics
from codespec.models.slots import CacheUse
from codespec.server.audit import NONE_YET
from codespec.server.daemon import DAEMON, Daemon
from codespec.server.loading import Loaded
from codespec.server.metrics import RequestMetrics
from codespec.server.metrics_format import CONTENT_TYPE, Family, Histogram, Kind, Number, Sample, to_text
from codespec.server.wire import reply
from codespec.types import Stats

LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # target tokens of a draft
OUTCOMES = ("plain", "full", "partial", "none")
PLACES = {
    "drafts": ("spec_decode_num_drafts_total", "Rounds with a draft."),
    "draft_tokens": ("spec_decode_num_draft_tokens_total", "Drafted target tokens, the target's own excluded."),
    "accepted_tokens": ("spec_decode_num_accepted_tokens_total", "Drafted tokens that the target agreed with."),
}
FINISHED = ("stop", "length", "deadline", "cancelled")


async def scrape(request: web.Request) -> web.StreamResponse:
    """Prometheus' text."""
    text = to_text(families(request.app[DAEMON]))
    return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


async def stats(request: web.Request) -> web.StreamResponse:
    """The same numbers as JSON, and whose they are."""
    daemon = request.app[DAEMON]
    loaded = daemon.worker.loaded
    found = [family.as_dict() for family in families(daemon)]
    whose = {"version": __version__, "state": daemon.state, "model": loaded.name if loaded else None}
    engine: dict[str, Any] = {"mode": None, "notes": []}
    if loaded:
        prompts = {"context": loaded.context, "prompt_budget": loaded.engine.prompt_budget}
        engine = {"mode": loaded.engine.mode, "notes": loaded.engine.notes, **prompts}
        engine["identity"] = dict(loaded.identity)
    return reply({"daemon": {**whose, **engine}, "families": found}, headers={"Cache-Control": "no-store"})


def families(daemon: Daemon) -> list[Family]:
    """All metrics. Those of the engine and of requests are there once the model is, whose name they bear."""
    found = list(_of_daemon(daemon))
    loaded = daemon.worker.loaded
    if loaded is not None:
        model = {"model_name": loaded.name}
        found += _of_requests(daemon.metrics, model)
        found += _of_exactness(daemon, loaded, model)
        metrics = loaded.engine.metrics.snapshot()
        found += _of_engine(metrics, model)
        found += _of_caches(metrics.totals, loaded.engine.caches, model)
    return found


def _of_daemon(daemon: Daemon) -> Iterator[Family]:
    yield _family("build_info", "gauge", "The daemon's version.", [Sample(1, {"version": __version__})])
    yield _family(
        "state", "gauge", "Whether it is starting, ready, failed or stopping.", [Sample(1, {"state": daemon.state})]
    )
    yield _one("num_requests_running", "gauge", "Requests that the engine works for.", daemon.num_running)
    yield _one("num_requests_waiting", "gauge", "Requests that wait for it.", daemon.num_waiting)
    yield _counts("requests_refused_total", "Requests that were turned away.", "reason", daemon.metrics.refused)


def _of_requests(metrics: RequestMetrics, model: Mapping[str, str]) -> Iterator[Family]:
    ended = {reason: metrics.completions[reason] for reason in FINISHED}
    yield _counts("requests_total", "Requests that are over, by priority.", "kind", metrics.requests, model)
    yield _counts("request_success_total", "Choices by why they ended.", "finished_reason", ended, model)
    yield _counts("requests_cancelled_total", "Requests cut short, by why.", "reason", metrics.cancelled, model)
    yield _counts(
        "requests_failed_total", "Requests that got an error, by whose fault.", "fault", metrics.failed, model
    )
    for name, said, histogram in (
        ("request_queue_time_seconds", "From arrival to a slot in the engine.", metrics.queue),
        ("time_to_first_token_seconds", "From arrival to the first piece of text.", metrics.to_first_text),
        ("e2e_request_latency_seconds", "From arrival to the end of the text.", metrics.to_end),
    ):
        yield _family(name, "histogram", said, histogram.samples(model))


def _of_exactness(daemon: Daemon, loaded: Loaded, model: Mapping[str, str]) -> Iterator[Family]:
    desk = daemon.worker.desk
    results = desk.audit.results if desk is not None else NONE_YET
    mode = {**model, "mode": loaded.engine.mode}
    yield _family("mode", "gauge", "The mode in effect: exact or fast.", [Sample(1, mode)])
    said = "Completions picked to be decoded again without drafts, by what came of it."
    yield _counts("audit_total", said, "result", results, model)


def _of_engine(metrics: Metrics, model: Mapping[str, str]) -> Iterator[Family]:
    yield from _of_drafts(metrics.tallies, model)
    yield _one("steps_total", "counter", "Forwards of the target.", metrics.steps, model)
    phases = {
        "draft": metrics.draft_s,
        "retokenize": metrics.retokenize_s,
        "verify": metrics.verify_s,
        "prefill": metrics.prefill_s,
        "rest": metrics.rest_s,
    }
    yield _counts("step_seconds_total", "Where the engine's time went; a step counts once.", "phase", phases, model)
    for name, said, value in (
        ("generation_tokens_total", "Target tokens written.", metrics.committed),
        ("prompt_tokens_total", "Prompt tokens of requests that are over.", metrics.totals.prompt_tokens),
        ("prompt_tokens_computed_total", "Prompt tokens that the target has read.", metrics.prefilled),
        (
            "goodput_tokens_total",
            "Tokens of steps that read no prompt, where plain cost is known.",
            metrics.goodput_tokens,
        ),
        ("goodput_seconds_total", "What those steps took.", metrics.goodput_s),
        ("goodput_plain_seconds_total", "What plain decoding costs for them, by the cost table.", metrics.plain_s),
    ):
        yield _one(name, "counter", said, value, model)


def _of_caches(totals: Stats, caches: Mapping[str, CacheUse], model: Mapping[str, str]) -> Iterator[Family]:
    asked = {"target": totals.prompt_tokens, "drafter": totals.drafter_prompt_tokens}
    found = {"target": totals.cached_tokens, "drafter": totals.drafter_cached_tokens}
    yield _counts("prefix_cache_queries_total", "Prompt tokens of requests that are over.", "model", asked, model)
    yield _counts("prefix_cache_hits_total", "Those whose keys and values were still there.", "model", found, model)
    for name, said, values in (
        ("kv_cache_bytes", "Size of a cache.", {name: use.most_bytes for name, use in caches.items()}),
        ("kv_cache_warm_bytes", "What idle slots keep for prompts to come.", {n: u.nbytes for n, u in caches.items()}),
    ):
        yield _family(name, "gauge", said, [Sample(n, {**model, "model": key}) for key, n in values.items()])


def _of_drafts(tallies: Mapping[Key, int], model: Mapping[str, str]) -> Iterator[Family]:
    for kind, (name, said) in PLACES.items():
        labels = ("proposer", "context", "language")
        samples = [
            Sample(n, {**model, **dict(zip(labels, map(str, key), strict=True))}) for key, n in _of(tallies, kind)
        ]
        yield _family(name, "counter", said, samples)
    positions = [
        Sample(count, {**model, "proposer": str(proposer), "position": str(position)})
        for (proposer, position), count in _of(tallies, "accepted_at")
    ]
    said = "Accepted tokens by their position in the draft, from 0."
    yield _family("spec_decode_num_accepted_tokens_per_pos_total", "counter", said, positions)
    outcomes = {outcome: tallies.get(("rounds", outcome), 0) for outcome in OUTCOMES}
    yield _counts("rounds_total", "Rounds by what became of the draft.", "outcome", outcomes, model)
    yield _family("draft_length", "histogram", "Chosen lengths in target tokens.", _lengths(tallies, model))


def _lengths(tallies: Mapping[Key, int], model: Mapping[str, str]) -> Iterator[Sample]:
    found: dict[str, Histogram] = {}
    for (proposer, length), count in _of(tallies, "length"):
        found.setdefault(str(proposer), Histogram(LENGTHS)).observe(int(length), count)
    for name, histogram in found.items():
        yield from histogram.samples({**model, "proposer": name})


def _of(tallies: Mapping[Key, int], kind: str) -> list[tuple[Key, int]]:
    """The tallies of a kind, ordered by the rest of their keys."""
    return sorted((key[1:], count) for key, count in tallies.items() if key[0] == kind)


def _one(name: str, kind: Kind, said: str, value: Number, labels: Mapping[str, str] | None = None) -> Family:
    return _family(name, kind, said, [Sample(value, labels or {})])


def _counts(
    name: str, said: str, label: str, values: Mapping[str, Number], labels: Mapping[str, str] | None = None
) -> Family:
    return _family(name, "counter", said, [Sample(n, {**(labels or {}), label: key}) for key, n in values.items()])


def _family(name: str, kind: Kind, said: str, samples: Iterable[Sample]) -> Family:
    return Family(f"codespec:{name}", kind, said, tuple(samples))


ROUTES = [web.get("/metrics", scrape), web.get("/v1/codespec/stats", stats)]
