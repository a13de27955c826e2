"""The download size printed before torch is fetched: the index's content lengths, or an estimate from the wheels'
names.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tools import torch_size
from tools.torch_size import announce, describe, file_size

CPU = "torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl"


class Index(BaseHTTPRequestHandler):
    """Answers HEAD with a length, for some files without one, for others not at all."""

    def do_HEAD(self) -> None:
        self.send_response(404 if "missing" in self.path else 200)
        if "silent" not in self.path:
            self.send_header("Content-Length", "150000000")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_sum_of_files_and_addresses(index: str, tmp_path: Path) -> None:
    (tmp_path / "numpy-2.whl").write_bytes(b"x" * 2_000_000)
    urls = [f"{index}/{CPU}", (tmp_path / "numpy-2.whl").as_uri()]
    assert describe("torch==2.13.0", urls) == "torch==2.13.0 and what it needs: 2 files, 152 MB"


@pytest.mark.parametrize("name", ["silent", "missing"])
def test_length_that_is_not_told_is_unknown(name: str, index: str, tmp_path: Path) -> None:
    assert file_size(f"{index}/{name}") is None
    assert file_size((tmp_path / name).as_uri()) is None


@pytest.mark.parametrize(
    ("others", "size"), [([], "about 200 MB"), (["nvidia_cublas-13-py3-none-any.whl"], "about 3 GB")]
)
def test_estimate_by_name(others: list[str], size: str, index: str) -> None:
    urls = [f"{index}/silent/{name}" for name in (CPU, *others)]
    assert describe("torch==2.13.0", urls).endswith(f"{len(urls)} files, {size}")


def test_nothing_is_said_where_torch_is_there(index: str) -> None:
    assert describe("torch==2.13.0", []) == ""
    assert describe("torch==2.13.0", [f"{index}/filelock-4.whl"]) == ""


def test_pip_that_cannot_say_gives_the_range(tmp_path: Path) -> None:
    line = announce(Path(sys.executable), "torch==2.13.0", tmp_path / "no-constraints.txt")
    assert line == f"torch==2.13.0: {torch_size.UNKNOWN}, from your package index"
