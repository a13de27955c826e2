"""The daemon for longer: 10,000 random requests, and 2,000 mixed ones of which half are given up, without a leak."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.server.conftest import Plain, plain, toy  # noqa: F401
from tests.server.daemons import Served, serving
from tests.server.fakes import FakeEngine
from tests.server.test_fuzz import fuzz
from tests.server.test_load import Load, check_nothing_is_left, check_texts

pytestmark = pytest.mark.full


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ten_thousand_random_requests() -> None:
    with serving(FakeEngine(), slots=8) as served:
        statuses = fuzz(served, 10_000, seed=3)
    assert {200, 400, 403, 404, 405} <= set(statuses)


def test_two_thousand_requests_leave_nothing_behind(toy: Served, plain: Plain) -> None:  # noqa: F811
    asyncio.run(Load(toy, 500).run())  # caches fill, allocators settle
    check_nothing_is_left(toy)
    files = open_files()
    load = Load(toy, 2000)
    asyncio.run(load.run())
    assert load.given_up >= 250 and len(load.found) >= 1000
    check_texts(load, plain)
    check_nothing_is_left(toy)
    assert open_files() <= files
