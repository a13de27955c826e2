"""The daemon under long load: 10,000 random requests, and 2,000 mixed ones, half of them abandoned, without a leak."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest
import torch

from codespec.backends.torch.linear import computed_rows, tiled_linears
from tests.server.conftest import Plain, plain, toy  # noqa: F401
from tests.server.daemons import Served, serving
from tests.server.test_fuzz import fuzz, talking_engine
from tests.server.test_load import Load, check_nothing_is_left, check_texts

pytestmark = pytest.mark.full


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ten_thousand_random_requests() -> None:
    with serving(talking_engine(), slots=8) as served:
        statuses = fuzz(served, 10_000, seed=3)
    assert {200, 400, 403, 404, 405} <= set(statuses)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def compile_kernels(served: Served) -> None:
    """Compute every number of rows once with every matrix.

    oneDNN keeps a kernel for each pair, 0.2 to 0.6 MB, and random requests would reach the last of them only after
    thousands (lab/LOG.md).
    """
    assert served.source.loaded is not None
    engine = served.source.loaded.engine
    networks = [engine.target.network, engine.proposers[1].model.network]  # type: ignore[union-attr]
    layers = [layer for network in networks for layer in tiled_linears(network)]

    def compute() -> None:
        for layer in layers:
            for rows in {computed_rows(count, layer.exact) for count in range(1, 129)}:
                layer(torch.zeros(rows, layer.in_features))

    asyncio.run_coroutine_threadsafe(served.source.call(compute), served.loop).result(60)  # type: ignore[arg-type]


def test_two_thousand_requests_leave_nothing_behind(toy: Served, plain: Plain) -> None:  # noqa: F811
    compile_kernels(toy)
    asyncio.run(Load(toy, 500).run())  # let caches fill and allocators settle
    check_nothing_is_left(toy)
    files, resident = open_files(), resident_bytes()
    load = Load(toy, 2000)
    asyncio.run(load.run())
    grown = resident_bytes() / resident - 1.0
    assert load.given_up >= 250 and len(load.found) >= 1000
    check_texts(load, plain)
    check_nothing_is_left(toy)
    assert open_files() <= files
    assert grown < 0.02, f"{resident} bytes and {grown:.1%} more"
    print(f"\n2,000 requests: {grown:.2%} more than {resident >> 20} MB")
