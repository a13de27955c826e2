"""The daemon's metrics as Prometheus metric families.

Metrics that also exist in vLLM have vLLM's names, with the prefix `codespec:`. A scrape reads a snapshot of the
engine's counters, so it never waits for a round of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from codespec import __version__
from codespec.api.types import FinishReason, Stats
from codespec.server.daemon import Daemon, Histogram, RequestMetrics

if TYPE_CHECKING:
    from codespec.backends.language_model import CacheUse
    from codespec.engine.metrics import Key, Metrics
    from codespec.server.keys_file import Account

PREFIX = "codespec:"
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # target tokens per draft
OUTCOMES = ("plain", "full", "partial", "none")
DRAFTS = {
    "drafts": ("spec_decode_num_drafts_total", "Rounds with a draft."),
    "draft_tokens": ("spec_decode_num_draft_tokens_total", "Drafted target tokens, excluding the target's own."),
    "accepted_tokens": ("spec_decode_num_accepted_tokens_total", "Drafted tokens that the target agreed with."),
}

Labels = Mapping[str, str]
NO_LABELS: Labels = MappingProxyType({})


class DaemonCollector(Collector):
    """Collects the metrics of a daemon, including the usage of the API key `key` ("": of all keys)."""

    def __init__(self, daemon: Daemon, key: str = "") -> None:
        self._daemon, self._key = daemon, key

    def collect(self) -> Iterator[Metric]:
        daemon, loaded = self._daemon, self._daemon.source.loaded
        yield from _of_daemon(daemon)
        if daemon.keyring is not None:
            yield from _of_keys([account for account in daemon.keyring.accounts if self._key in ("", account.name)])
        if loaded is not None:  # the model's name is a label of the remaining metrics
            model = {"model_name": loaded.name}
            metrics = loaded.metrics.snapshot()
            yield from _of_requests(daemon.metrics, model)
            yield _value("mode", "The mode in effect: exact, fast or upstream.", 1, {**model, "mode": loaded.mode})
            yield from _of_engine(metrics, model)
            yield from _of_caches(metrics.totals, loaded.caches, model)


def _of_daemon(daemon: Daemon) -> Iterator[Metric]:
    yield _value("build_info", "The daemon's version.", 1, {"version": __version__})
    about = "The daemon's state: starting, ready, idle (models freed), failed or stopping."
    yield _value("state", about, 1, {"state": daemon.state})
    running = daemon.source.num_running
    yield _value("num_requests_running", "Requests that the engine runs.", running)
    yield _value("num_requests_waiting", "Requests that wait for the engine.", max(0, daemon.num_open - running))
    yield _values("requests_refused_total", "Requests that were refused.", "reason", daemon.metrics.refused)
    remote = daemon.source.remote
    source = "local" if remote is None else "upstream"
    yield _value("source", "The source of the text: this process, or an upstream server.", 1, {"source": source})
    if remote is not None:
        about = "Completions sent to the upstream server, by outcome."
        yield _values("upstream_requests_total", about, "outcome", remote["requests"])
        yield _value("upstream_retries_total", "Second tries.", remote["retries"])
        is_open = remote["circuit"] == "open"
        yield _value("upstream_circuit_open", "Whether no requests are sent upstream.", is_open)


def _of_keys(accounts: Sequence[Account]) -> Iterator[Metric]:
    """Yield the usage of each key. The labels come from the keys file, so a request can't create new labels."""
    for name, about, attribute in (
        ("key_requests_total", "The key's POST requests.", "requests"),
        ("key_prompt_tokens_total", "Prompt tokens of the key's requests.", "prompt_tokens"),
        ("key_generation_tokens_total", "Tokens written for the key.", "tokens"),
        ("key_requests_refused_total", "The key's completions that found the queue full.", "refused"),
        ("key_requests_open", "Waiting and running completions.", "num_open"),
    ):
        yield _values(name, about, "key", {account.name: getattr(account, attribute) for account in accounts})


def _of_requests(metrics: RequestMetrics, model: Labels) -> Iterator[Metric]:
    ended = {reason: metrics.completions[reason] for reason in get_args(FinishReason)}
    for name, about, label, values in (
        ("requests_total", "Finished requests, by priority.", "kind", metrics.requests),
        ("request_success_total", "Finished choices, by reason.", "finished_reason", ended),
        ("requests_cancelled_total", "Cancelled requests, by reason.", "reason", metrics.cancelled),
        ("requests_failed_total", "Requests that got an error, by the party at fault.", "fault", metrics.failed),
    ):
        yield _values(name, about, label, values, model)
    for name, about, histogram in (
        ("request_queue_time_seconds", "From arrival to a slot in the engine.", metrics.queue),
        ("time_to_first_token_seconds", "From arrival to the first piece of text.", metrics.to_first_text),
        ("e2e_request_latency_seconds", "From arrival to the end of the text.", metrics.to_end),
    ):
        yield _histograms(name, about, (), {(): histogram}, model)


def _of_engine(metrics: Metrics, model: Labels) -> Iterator[Metric]:
    yield from _of_drafts(metrics.tallies, model)
    yield _value("steps_total", "Forwards of the target.", metrics.steps, model)
    phases = {name: getattr(metrics, f"{name}_s") for name in ("draft", "retokenize", "verify", "prefill", "rest")}
    yield _values("step_seconds_total", "The engine's time, by phase; a step counts once.", "phase", phases, model)
    steps = "Tokens of steps without prefill for which the cost table has a plain cost."
    for name, about, value in (
        ("generation_tokens_total", "Generated target tokens.", metrics.committed),
        ("prompt_tokens_total", "Prompt tokens of finished requests.", metrics.totals.prompt_tokens),
        ("prompt_tokens_computed_total", "Prompt tokens that the target has computed.", metrics.prefilled),
        ("goodput_tokens_total", steps, metrics.goodput_tokens),
        ("goodput_seconds_total", "Duration of those steps.", metrics.goodput_s),
        ("goodput_plain_seconds_total", "Time of plain decoding for their tokens, by the cost table.", metrics.plain_s),
    ):
        yield _value(name, about, value, model)


def _of_caches(totals: Stats, caches: Mapping[str, CacheUse], model: Labels) -> Iterator[Metric]:
    queries = {"target": totals.prompt_tokens, "drafter": totals.drafter_prompt_tokens}
    hits = {"target": totals.cached_tokens, "drafter": totals.drafter_cached_tokens}
    sizes = {name: use.max_bytes for name, use in caches.items()}
    warm = {name: use.nbytes for name, use in caches.items()}
    yield _values("prefix_cache_queries_total", "Prompt tokens of finished requests.", "model", queries, model)
    yield _values("prefix_cache_hits_total", "Prompt tokens found in the cache.", "model", hits, model)
    yield _values("kv_cache_bytes", "Size of a cache.", "model", sizes, model)
    yield _values("kv_cache_warm_bytes", "Bytes in idle slots, kept for later prompts.", "model", warm, model)


def _of_drafts(tallies: Mapping[Key, int], model: Labels) -> Iterator[Metric]:
    for kind, (name, about) in DRAFTS.items():
        yield _family(name, about, ("proposer", "context", "language"), _of(tallies, kind), model)
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    about = "Accepted tokens by their position in the draft, from 0."
    yield _family(name, about, ("proposer", "position"), _of(tallies, "accepted_at"), model)
    outcomes = {outcome: tallies.get(("rounds", outcome), 0) for outcome in OUTCOMES}
    yield _values("rounds_total", "Rounds, by outcome of the draft.", "outcome", outcomes, model)
    lengths: dict[Key, Histogram] = {}
    for (proposer, length), count in _of(tallies, "length"):
        lengths.setdefault((proposer,), Histogram(LENGTHS)).observe(int(length), count)
    yield _histograms("draft_length", "Chosen lengths in target tokens.", ("proposer",), lengths, model)


def _of(tallies: Mapping[Key, int], kind: str) -> list[tuple[Key, int]]:
    """Return the tallies whose keys begin with `kind`, sorted, without the first part of each key."""
    return sorted((key[1:], count) for key, count in tallies.items() if key[0] == kind)


def _family(
    name: str, about: str, names: Sequence[str], samples: Iterable[tuple[Key, float]], labels: Labels
) -> Metric:
    """Return a metric family with one sample per key; the parts of a key are the values of the labels `names`."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(PREFIX + name, about, labels=[*labels, *names])
    for key, value in samples:
        family.add_metric([*labels.values(), *map(str, key)], value)
    return family


def _histograms(
    name: str, about: str, names: Sequence[str], values: Mapping[Key, Histogram], labels: Labels
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, about, labels=[*labels, *names])
    for key, histogram in values.items():
        family.add_metric([*labels.values(), *map(str, key)], histogram.buckets(), histogram.sum)
    return family


def _value(name: str, about: str, value: float, labels: Labels = NO_LABELS) -> Metric:
    return _family(name, about, (), [((), value)], labels)


def _values(name: str, about: str, label: str, values: Mapping[str, float], labels: Labels = NO_LABELS) -> Metric:
    return _family(name, about, (label,), (((key,), value) for key, value in values.items()), labels)
