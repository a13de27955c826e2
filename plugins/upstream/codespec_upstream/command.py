"""`codespec serve --upstream URL` and the checks of `codespec doctor` for it, an implementation of `BackEnd`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

from codespec.api.config import EngineConfig, ServeConfig
from codespec.cli.options import PAIR
from codespec.errors import CodespecError, ConfigError, Finding, from_fault, warning, well
from codespec.store.disk import say
from codespec.user_folders import read_token
from codespec_upstream.client import UpstreamClient
from codespec_upstream.probe import Facts, look
from codespec_upstream.source import Upstream

SLOW = 1.0  # seconds for one token; a slower server is too slow for suggestions
MAX_PATIENCE = 10.0  # seconds that `codespec doctor` waits for the server


def connect(options: argparse.Namespace, config: ServeConfig) -> Upstream:
    """Return the configured server as a source of text. Raises ConfigError for invalid or contradictory settings."""
    named = [f"--{name}" for name in PAIR if getattr(options, name) is not None]
    if named:
        problem = f"{' and '.join(named)} can't be used with an upstream server ({config.upstream})"
        raise ConfigError(f"{problem}, which has its own model", "leave one of the two out")
    for level in options.config.levels(EngineConfig, {}):
        unused = [name for name in PAIR if level.values.get(name)]
        if unused:
            names = " and ".join(unused)
            say(f"{config.upstream} has its own model: remove {names} from {level.place}, or the upstream.")
    return Upstream(client_of(config, config.upstream_patience), config.upstream_model, config.upstream_prompt)


def check(config: ServeConfig) -> Iterator[Finding]:
    """Check the configured server: its models, its support for fill-in-the-middle, and the time of one token."""
    try:
        facts = asyncio.run(_look(config))
    except CodespecError as error:
        yield from_fault("upstream", error.fault)
        return
    context = f"context {facts.context:,}" if facts.context_known else f"context not named, {facts.context:,} assumed"
    yield well("upstream", f"{config.upstream} serves {facts.model}, {context}")
    if facts.fill_in:
        yield well("fill-in", facts.fill_in)
    else:
        fix = "serve a model that codespec knows to fill in (docs/upstream.md)"
        yield warning("fill-in", "the server has no suffix, and no template is known for this model", fix)
    message = f"{facts.latency * 1000:.0f} ms for one token"
    yield (
        well("latency", message)
        if facts.latency < SLOW
        else warning("latency", message, "check the load on that server")
    )


def client_of(config: ServeConfig, patience: float) -> UpstreamClient:
    """Return a client of the configured server. Raises ConfigError if the URL or the key is not usable."""
    return UpstreamClient(config.upstream, read_token(config.upstream_token_file, {}, least=1), patience)


async def _look(config: ServeConfig) -> Facts:
    async with client_of(config, min(MAX_PATIENCE, config.upstream_patience)) as client:
        return await look(client, config.upstream_model)
