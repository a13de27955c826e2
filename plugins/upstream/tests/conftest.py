"""A daemon in front of a fake server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from codespec_upstream.client import UpstreamClient
from codespec_upstream.source import Upstream

from plugins.upstream.tests.servers import FakeServer, fake_server
from tests.server.daemons import Served, serving_source


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name no model, which a daemon with an upstream server would say that it does not use."""
    monkeypatch.delenv("CODESPEC_MODEL")


@pytest.fixture
def upstream() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


@pytest.fixture
def daemon(upstream: FakeServer) -> Iterator[Served]:
    with serving_source(Upstream(UpstreamClient(upstream.url, patience=0.5))) as served:
        yield served
