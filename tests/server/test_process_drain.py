"""A signal to a real daemon under load: one time limit, and every client is answered completely."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tests.cli.conftest import LONG, Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import SECONDS
from tests.server.daemons import wait_for
from tests.server.test_process import daemon

ALLOWED = 2  # seconds; the requests take many times longer
STREAMED = ("/v1/completions", "/completion", "/api/generate")
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


def long(path: str, stream: bool) -> dict[str, object]:
    """Return a unique request: equal ones would share a computation, so none would wait."""
    sizes = {"max_tokens": LONG, "n_predict": LONG, "options": {"num_predict": LONG}}
    return {**sizes, "prompt": f"# {path} {stream}\n", "stream": stream}


def test_one_limit_and_an_answer_for_everybody(models: Models) -> None:  # noqa: F811
    words = (*models.flags, "--max-batch", "4", "--drain-seconds", str(ALLOWED))
    with daemon(*words) as served, ThreadPoolExecutor(8) as pool, ExitStack() as stack:
        served.until_ready()
        own = served.open("/v1/codespec/complete", {"prefix": "begins", "max_tokens": LONG, "shape": "raw"})
        streams = [own, *(served.open(path, long(path, stream=True)) for path in STREAMED)]
        for stream in streams:
            stack.callback(stream.close)
        begun = [stream.getresponse() for stream in streams]
        heads = [reply.read1(10) for reply in begun]
        waiting = [served.open(path, long(path, stream=False)) for path in STREAMED]
        waiting.append(served.open("/v1/codespec/complete", {"prefix": "waits", "max_tokens": LONG, "shape": "raw"}))
        for connection in waiting:
            stack.callback(connection.close)
        assert wait_for(lambda: served.num_open() == 8)
        with socket.create_connection((served.host, served.port), timeout=SECONDS) as half:
            half.sendall(HALF)
            served.process.send_signal(signal.SIGTERM)
            rests = list(pool.map(http.client.HTTPResponse.read, begun))
            refused = [connection.getresponse() for connection in waiting]
            message = [json.loads(reply.read()) for reply in refused]
            cut = half.recv(4096)
        code, _, err = served.end()
    assert all(heads) and b"event: error\n" in rests[0]
    for rest in rests:
        last = rest.decode().rstrip("\n").rpartition("\n")[2].removeprefix("data: ")
        assert "is stopping" in json.dumps(json.loads(last)) and b"[DONE]" not in rest
    assert [reply.status for reply in refused] == [503] * 4 and all("is stopping" in json.dumps(one) for one in message)
    assert cut.startswith(b"HTTP/1.1 503"), "whoever was still sending is answered too"
    assert code == 0 and "Traceback" not in err


def test_who_is_still_sending_delays_no_end(models: Models) -> None:  # noqa: F811
    """A stream finishes within the long drain, while two bodies never arrive; one's head came after the signal."""
    with daemon(*models.flags, "--drain-seconds", "300") as served, ExitStack() as stack:
        served.until_ready()
        early, late = (stack.enter_context(socket.create_connection((served.host, served.port))) for _ in range(2))
        for half in (early, late):
            half.settimeout(SECONDS)
        stream = served.open(
            "/v1/codespec/complete", {"prefix": "a", "max_tokens": 400, "shape": "raw", "speculate": False}
        )
        stack.callback(stream.close)
        begun = stream.getresponse()
        begun.read1(10)
        early.sendall(HALF)
        late.sendall(HALF[:40])
        served.process.send_signal(signal.SIGTERM)
        assert early.recv(4096).startswith(b"HTTP/1.1 503")
        late.sendall(HALF[40:])
        assert b"event: done\n" in begun.read(), "work that was accepted is finished"
        code, _, err = served.end()  # within its own limit, which is shorter than the drain
    assert code == 0 and "Traceback" not in err
