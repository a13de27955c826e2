"""Check the server that writes for the daemon: its models, how it fills in, and the time of one token."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from codespec.cli.checks.finding import Finding, failed, from_error, warning, well
from codespec.contract.serve_config import ServeConfig
from codespec.errors import CodespecError, install_mend
from codespec.token_file import read_token

if TYPE_CHECKING:
    from codespec.upstream.probe import Facts

SLOW = 1.0  # seconds of one token, after which suggestions come too late
MOST_PATIENCE = 10.0  # seconds to wait here


def check_upstream(config: ServeConfig) -> Iterator[Finding]:
    """Look at the server once."""
    if importlib.util.find_spec("aiohttp") is None:
        yield failed("upstream", "aiohttp is not installed", install_mend("upstream"))
        return
    try:
        facts = asyncio.run(_look(config))
    except CodespecError as error:
        yield from_error("upstream", error)
        return
    context = f"context {facts.context:,}" if facts.context_known else f"context not named, {facts.context:,} assumed"
    yield well("upstream", f"{config.upstream} serves {facts.model}, {context}")
    if facts.fill_in:
        yield well("fill-in", facts.fill_in)
    else:
        mend = "serve a model that codespec knows to fill in (docs/upstream.md)"
        yield warning("fill-in", "the server has no suffix, and no template is known for this model", mend)
    said = f"{facts.latency * 1000:.0f} ms for one token"
    yield well("latency", said) if facts.latency < SLOW else warning("latency", said, "see what else it computes")


async def _look(config: ServeConfig) -> Facts:
    from codespec.upstream.client import UpstreamClient
    from codespec.upstream.probe import look

    key = read_token(config.upstream_token_file, {}, least=1)
    async with UpstreamClient(config.upstream, key, min(MOST_PATIENCE, config.upstream_patience)) as client:
        return await look(client, config.upstream_model)
