"""Serve /metrics and /v1/codespec/stats: vLLM's metric names with our prefix, and metrics specific to speculation.

A scrape reads a snapshot of the engine's numbers, so it never waits for a round. The Prometheus client library only
formats the text; it keeps no counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from codespec import __version__
from codespec.contract.types import Stats
from codespec.engine.metrics import Key, Metrics
from codespec.models.slots import CacheUse
from codespec.server.accounts import Account
from codespec.server.audit import NONE_YET
from codespec.server.audit_log import CALL
from codespec.server.daemon import DAEMON, Daemon
from codespec.server.loading import Loaded
from codespec.server.metrics import Histogram, RequestMetrics
from codespec.server.wire import reply

PREFIX = "codespec:"
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # target tokens per draft
OUTCOMES = ("plain", "full", "partial", "none")
DRAFTS = {
    "drafts": ("spec_decode_num_drafts_total", "Rounds with a draft."),
    "draft_tokens": ("spec_decode_num_draft_tokens_total", "Drafted target tokens, the target's own excluded."),
    "accepted_tokens": ("spec_decode_num_accepted_tokens_total", "Drafted tokens that the target agreed with."),
}
FINISHED = ("stop", "length", "deadline", "cancelled")

Labels = Mapping[str, str]


async def scrape(request: web.Request) -> web.StreamResponse:
    """Serve the metrics in Prometheus' text format."""
    text = generate_latest(DaemonCollector(request.app[DAEMON]))
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"})


async def stats(request: web.Request) -> web.StreamResponse:
    """Serve the same metrics as JSON, with the daemon's version, state and model. A key sees its own usage alone."""
    daemon = request.app[DAEMON]
    loaded = daemon.engine_thread.loaded
    about: dict[str, Any] = {"version": __version__, "state": daemon.state, "reason": daemon.reason}
    about["model"] = loaded.name if loaded else None
    engine: dict[str, Any] = {"mode": None, "kernel": "", "variance": "", "notes": []}
    if loaded:
        prompts = {"context": loaded.context, "prompt_budget": loaded.engine.prompt_budget}
        engine = {name: getattr(loaded.engine, name) for name in engine} | prompts
        engine["identity"] = dict(loaded.identity)
    if daemon.engine_thread.remote is not None:
        engine["upstream"] = daemon.engine_thread.remote
    families = [_as_json(family) for family in DaemonCollector(daemon, request[CALL].own_key).collect()]
    return reply({"daemon": {**about, **engine}, "families": families}, headers={"Cache-Control": "no-store"})


def _as_json(family: Metric) -> dict[str, Any]:
    samples = [{"name": one.name, "labels": one.labels, "value": one.value} for one in family.samples]
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return {"name": name, "type": family.type, "help": family.documentation, "samples": samples}


class DaemonCollector(Collector):
    """Collects all metrics of a daemon.

    Metrics of requests and of the engine are labelled with the model's name and start when it is loaded. `key` limits
    the usage by key to that of one name ("": all).
    """

    def __init__(self, daemon: Daemon, key: str = "") -> None:
        self._daemon, self._key = daemon, key

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families with their current values."""
        daemon, loaded = self._daemon, self._daemon.engine_thread.loaded
        yield from _of_daemon(daemon)
        yield from _of_upstream(daemon)
        if daemon.keyring is not None:
            yield from _of_keys([one for one in daemon.keyring.accounts if self._key in ("", one.name)])
        if loaded is not None:
            model = {"model_name": loaded.name}
            metrics = loaded.engine.metrics.snapshot()
            yield from _of_requests(daemon.metrics, model)
            yield from _of_exactness(daemon, loaded, model)
            yield from _of_engine(metrics, model)
            yield from _of_caches(metrics.totals, loaded.engine.caches, model)


def _of_daemon(daemon: Daemon) -> Iterator[Metric]:
    yield _gauge("build_info", "The daemon's version.", 1, {"version": __version__})
    yield _gauge("state", "Whether it is starting, ready, failed or stopping.", 1, {"state": daemon.state})
    yield _gauge("num_requests_running", "Requests that the engine works for.", daemon.num_running)
    yield _gauge("num_requests_waiting", "Requests that wait for it.", daemon.num_waiting)
    yield _counters("requests_refused_total", "Requests that were turned away.", "reason", daemon.metrics.refused)


def _of_upstream(daemon: Daemon) -> Iterator[Metric]:
    remote = daemon.engine_thread.remote
    source = "local" if remote is None else "upstream"
    yield _gauge("source", "Who writes: this process, or a server upstream.", 1, {"source": source})
    if remote is not None:
        about = "Completions that another server was to write, by what became of them."
        yield _counters("upstream_requests_total", about, "outcome", remote["requests"])
        yield _counter("upstream_retries_total", "Second tries.", remote["retries"], {})
        yield _gauge("upstream_circuit_open", "Whether nothing is sent upstream.", remote["circuit"] == "open")


def _of_keys(accounts: Sequence[Account]) -> Iterator[Metric]:
    """Yield the usage by key, whose names come from the keys file, so a request can't create new labels."""
    for name, about, values in (
        ("key_requests_total", "POST requests within the key's limit.", [one.requests for one in accounts]),
        ("key_prompt_tokens_total", "Prompt tokens of its requests.", [one.prompt_tokens for one in accounts]),
        ("key_generation_tokens_total", "Tokens written for it.", [one.tokens for one in accounts]),
    ):
        yield _counters(name, about, "key", dict(zip([one.name for one in accounts], values, strict=True)))
    open_now = GaugeMetricFamily(f"{PREFIX}key_requests_open", "Its completions that wait or run.", labels=["key"])
    for one in accounts:
        open_now.add_metric([one.name], len(one.open))
    yield open_now
    refused = [((one.name, limit), count) for one in accounts for limit, count in one.refused.items()]
    yield _tallied("key_requests_refused_total", "Requests beyond a limit, by limit.", ("key", "limit"), refused, {})


def _of_requests(metrics: RequestMetrics, model: Labels) -> Iterator[Metric]:
    ended = {reason: metrics.completions[reason] for reason in FINISHED}
    yield _counters("requests_total", "Requests that are over, by priority.", "kind", metrics.requests, model)
    yield _counters("request_success_total", "Choices by why they ended.", "finished_reason", ended, model)
    yield _counters("requests_cancelled_total", "Requests cut short, by why.", "reason", metrics.cancelled, model)
    yield _counters(
        "requests_failed_total", "Requests that got an error, by whose fault.", "fault", metrics.failed, model
    )
    for name, about, histogram in (
        ("request_queue_time_seconds", "From arrival to a slot in the engine.", metrics.queue),
        ("time_to_first_token_seconds", "From arrival to the first piece of text.", metrics.to_first_text),
        ("e2e_request_latency_seconds", "From arrival to the end of the text.", metrics.to_end),
    ):
        family = HistogramMetricFamily(PREFIX + name, about, labels=list(model))
        family.add_metric(list(model.values()), histogram.buckets(), histogram.sum)
        yield family


def _of_exactness(daemon: Daemon, loaded: Loaded, model: Labels) -> Iterator[Metric]:
    dispatcher = daemon.engine_thread.dispatcher
    results = dispatcher.audit.results if dispatcher is not None else NONE_YET
    yield _gauge("mode", "The mode in effect: exact, fast or upstream.", 1, {**model, "mode": loaded.engine.mode})
    about = "Completions picked to be decoded again without drafts, by what came of it."
    yield _counters("audit_total", about, "result", results, model)


def _of_engine(metrics: Metrics, model: Labels) -> Iterator[Metric]:
    yield from _of_drafts(metrics.tallies, model)
    yield _counter("steps_total", "Forwards of the target.", metrics.steps, model)
    phases = {
        "draft": metrics.draft_s,
        "retokenize": metrics.retokenize_s,
        "verify": metrics.verify_s,
        "prefill": metrics.prefill_s,
        "rest": metrics.rest_s,
    }
    yield _counters("step_seconds_total", "Where the engine's time went; a step counts once.", "phase", phases, model)
    for name, about, value in (
        ("generation_tokens_total", "Target tokens written.", metrics.committed),
        ("prompt_tokens_total", "Prompt tokens of finished requests.", metrics.totals.prompt_tokens),
        ("prompt_tokens_computed_total", "Prompt tokens that the target has read.", metrics.prefilled),
        (
            "goodput_tokens_total",
            "Tokens of steps without prefill whose plain cost is known.",
            metrics.goodput_tokens,
        ),
        ("goodput_seconds_total", "Duration of those steps.", metrics.goodput_s),
        ("goodput_plain_seconds_total", "Time of plain decoding for their tokens, by the cost table.", metrics.plain_s),
    ):
        yield _counter(name, about, value, model)


def _of_caches(totals: Stats, caches: Mapping[str, CacheUse], model: Labels) -> Iterator[Metric]:
    queries = {"target": totals.prompt_tokens, "drafter": totals.drafter_prompt_tokens}
    hits = {"target": totals.cached_tokens, "drafter": totals.drafter_cached_tokens}
    yield _counters("prefix_cache_queries_total", "Prompt tokens of finished requests.", "model", queries, model)
    yield _counters("prefix_cache_hits_total", "Prompt tokens found in the cache.", "model", hits, model)
    for name, about, sizes in (
        ("kv_cache_bytes", "Size of a cache.", {name: use.most_bytes for name, use in caches.items()}),
        (
            "kv_cache_warm_bytes",
            "Bytes that idle slots keep for later prompts.",
            {n: u.nbytes for n, u in caches.items()},
        ),
    ):
        family = GaugeMetricFamily(PREFIX + name, about, labels=[*model, "model"])
        for cache, size in sizes.items():
            family.add_metric([*model.values(), cache], size)
        yield family


def _of_drafts(tallies: Mapping[Key, int], model: Labels) -> Iterator[Metric]:
    for kind, (name, about) in DRAFTS.items():
        yield _tallied(name, about, ("proposer", "context", "language"), _of(tallies, kind), model)
    about = "Accepted tokens by their position in the draft, from 0."
    positions = _of(tallies, "accepted_at")
    yield _tallied("spec_decode_num_accepted_tokens_per_pos_total", about, ("proposer", "position"), positions, model)
    outcomes = {outcome: tallies.get(("rounds", outcome), 0) for outcome in OUTCOMES}
    yield _counters("rounds_total", "Rounds by what became of the draft.", "outcome", outcomes, model)
    lengths: dict[str, Histogram] = {}
    for (proposer, length), count in _of(tallies, "length"):
        lengths.setdefault(str(proposer), Histogram(LENGTHS)).observe(int(length), count)
    family = HistogramMetricFamily(
        f"{PREFIX}draft_length", "Chosen lengths in target tokens.", labels=[*model, "proposer"]
    )
    for name, histogram in lengths.items():
        family.add_metric([*model.values(), name], histogram.buckets(), histogram.sum)
    yield family


def _of(tallies: Mapping[Key, int], kind: str) -> list[tuple[Key, int]]:
    """Return the tallies of one kind, sorted by the rest of their keys."""
    return sorted((key[1:], count) for key, count in tallies.items() if key[0] == kind)


def _tallied(
    name: str, about: str, names: tuple[str, ...], tallies: Iterable[tuple[Key, float]], labels: Labels
) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, about, labels=[*labels, *names])
    for key, count in tallies:
        family.add_metric([*labels.values(), *map(str, key)], count)
    return family


def _gauge(name: str, about: str, value: float, labels: Labels | None = None) -> GaugeMetricFamily:
    given = labels or {}
    family = GaugeMetricFamily(PREFIX + name, about, labels=list(given))
    family.add_metric(list(given.values()), value)
    return family


def _counter(name: str, about: str, value: float, labels: Labels) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, about, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counters(
    name: str, about: str, label: str, values: Mapping[str, float], labels: Labels | None = None
) -> CounterMetricFamily:
    """Return a counter with one sample for each value of `label`, plus the common labels."""
    return _tallied(name, about, (label,), (((key,), value) for key, value in values.items()), labels or {})


ROUTES = [web.get("/metrics", scrape), web.get("/v1/codespec/stats", stats)]
