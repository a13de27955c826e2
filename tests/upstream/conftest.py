"""A daemon in front of a fake server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from codespec.server.upstream import Upstream
from codespec.upstream.client import UpstreamClient
from tests.server.daemons import Served, serving_source
from tests.upstream.servers import FakeServer, fake_server


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
