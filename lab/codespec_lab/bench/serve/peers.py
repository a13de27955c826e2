"""Measure llama.cpp's server under the load of `codespec bench serve`: the daemon's prompts as the same ids, from the
same number of clients. Each server keeps its prompt cache on, as in normal use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from codespec.contract.engine_config import EngineConfig
from codespec.store.resolve import resolve
from codespec.text.fim import build_prompt
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from codespec_lab.bench.decode.contest import Variant
from codespec_lab.bench.decode.llama_cpp import LlamaContestant, LlamaFamily
from codespec_lab.bench.llama_server import Completion, LlamaServerError
from codespec_lab.bench.sites import Site
from codespec_lab.bench.statistics import percentiles, ratio_interval


@dataclass(frozen=True, slots=True)
class Load:
    """The sites, the token limit of a text, the most clients at once, and the daemon's context."""

    sites: Sequence[Site]
    tokens: int
    slots: int
    context: int


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A prompt, and the ids that end its text."""

    ids: tuple[int, ...]
    ends: frozenset[int]


@dataclass(frozen=True, slots=True)
class Waited:
    """One answer: the client's seconds until the first and the last id, the tokens of text, and the prompt tokens that
    were computed and that came from the cache.
    """

    first: float
    total: float
    tokens: int
    read: int
    cached: int


@dataclass(slots=True)
class PeerPasses:
    """All passes of one contestant at one concurrency: the answers by site and the passes' seconds, or the error."""

    seconds: float = 0.0
    by_site: dict[int, list[Waited]] = field(default_factory=dict)
    failed: str = ""

    def as_dict(self, ours: Sequence[float]) -> dict[str, Any]:
        """Return the figures; `ours` are codespec's seconds at each site, for the same number of passes."""
        if self.failed:
            return {"failed": self.failed}
        answers = [answer for site in sorted(self.by_site) for answer in self.by_site[site]]
        theirs = [sum(answer.total for answer in self.by_site[site]) for site in sorted(self.by_site)]
        return {
            "requests": len(answers),
            "tokens_per_second": sum(answer.tokens for answer in answers) / self.seconds,
            "first_ms": percentiles([answer.first * 1000 for answer in answers]),
            "total_ms": percentiles([answer.total * 1000 for answer in answers]),
            "cached": sum(one.cached for one in answers) / max(1, sum(one.cached + one.read for one in answers)),
            "codespec_faster": ratio_interval(theirs, ours),
        }


class ServePeers:
    """The contestants that can run, the prompts as ids, and the reasons why others are absent."""

    def __init__(self, config: EngineConfig, load: Load, folder: Path | None) -> None:
        self._tokens = load.tokens
        tokenizer = TextTokenizer.from_folder(resolve(config.target).folder())
        self._prompts = [_prompt(tokenizer, site, load.context - load.tokens) for site in load.sites]
        room = max(len(prompt.ids) for prompt in self._prompts) + load.tokens
        self._family = LlamaFamily(config, load.slots, room, folder)
        self._threads = config.threads or len(os.sched_getaffinity(0))
        self.absent: dict[str, str] = dict(self._family.absent)

    @property
    def contestants(self) -> list[LlamaContestant]:
        """Return the contestants that can run."""
        return self._family.runnable

    @property
    def requests(self) -> int:
        """Return the number of requests in one pass of all contestants."""
        return len(self.contestants) * len(self._prompts)

    def facts(self) -> dict[str, Any]:
        """Return each contestant's program, options and threads, and the reasons why others are absent."""
        run = {one.name: {**one.facts(self._variant(one)), "threads": self._threads} for one in self.contestants}
        return run | {name: {"absent": reason} for name, reason in self.absent.items()}

    def measure(
        self, contestant: LlamaContestant, passes: PeerPasses, together: int, advance: Callable[[], None]
    ) -> None:
        """Send all prompts once, `together` at a time. Record a failure in `passes`."""

        def ask(number: int) -> Waited:
            began = time.perf_counter()
            prompt = self._prompts[number]
            done = server.complete(prompt.ids, self._tokens, prompt.ends, cached=True)
            advance()
            return _waited(done, began)

        if passes.failed:
            return
        try:
            server = contestant.server(self._variant(contestant))
            began = time.perf_counter()
            with ThreadPoolExecutor(together) as pool:
                answers = list(pool.map(ask, range(len(self._prompts))))
            passes.seconds += time.perf_counter() - began
        except LlamaServerError as error:
            passes.failed = str(error)
            return
        for number, answer in enumerate(answers):
            passes.by_site.setdefault(number, []).append(answer)

    def close(self) -> None:
        """Stop the servers."""
        self._family.close()

    def _variant(self, contestant: LlamaContestant) -> Variant:
        return replace(contestant.variants()[0], threads=self._threads)


@contextmanager
def serve_peers(config: EngineConfig, load: Load, folder: Path | None) -> Iterator[ServePeers]:
    """Yield the peers, and stop their servers when the block ends."""
    peers = ServePeers(config, load, folder)
    try:
        yield peers
    finally:
        peers.close()


def _prompt(tokenizer: TextTokenizer, site: Site, budget: int) -> PromptIds:
    """Return the daemon's prompt for a site, and the ids that end its text."""
    template = find_template(tokenizer)
    fills_in = bool(site.suffix) and not isinstance(template, FimMissing)
    prompt = build_prompt(
        tokenizer,
        None if isinstance(template, FimMissing) else template,
        prefix=site.prefix,
        suffix=site.suffix,
        path=site.path,
        budget=budget,
    )
    return PromptIds(tuple(prompt.ids), tokenizer.eos_ids if fills_in else tokenizer.model_eos_ids)


def _waited(done: Completion, began: float) -> Waited:
    timings = done.timings
    read, cached = (timings.prompt_tokens, timings.cached_tokens) if timings else (0, 0)
    return Waited(done.arrived[0] - began, done.ended - began, len(done.ids), read, cached)
