"""Run the replicas on this machine in the foreground, until a signal arrives."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

# Ray reads these variables when it is imported. Usage statistics stay off, so that nothing leaves this machine.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "codespec_scale.middlewares")
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")  # logs stay in Ray's folder

import ray
from ray import serve

from codespec.api.config import check_bind
from codespec.client.starter import absolute_environment
from codespec.errors import ConfigError
from codespec.user_folders import read_token
from codespec_scale.application import app

STORE_BYTES = 100 << 20  # size of Ray's object store, which holds none of the texts


def run(host: str, port: int, settings: Mapping[str, Any]) -> int:
    """Start the replicas, print the address, and stop the replicas at a signal. Raises ConfigError."""
    check_bind(host, read_token(str(settings.get("token_file") or "")))
    application = app(settings)
    os.environ.update(absolute_environment(os.environ))  # replicas may run in another folder
    processors = max(os.cpu_count() or 1, int(settings.get("replicas", 1)) * int(settings.get("cpus", 1)))
    ray.init(num_cpus=processors, include_dashboard=False, object_store_memory=STORE_BYTES, logging_level="warning")
    try:
        serve.start(http_options={"host": host, "port": port})
        _deploy(application)
        print(f"codespec: {settings.get('replicas', 1)} replicas ready on http://{host}:{port}", flush=True)
        _until_signal()
    finally:
        serve.shutdown()
        ray.shutdown()
    return 0


def _deploy(application: Any) -> None:
    """Start the replicas. Raises ConfigError if one of them does not start."""
    try:
        serve.run(application, name="codespec", logging_config={"log_level": "WARNING"})
    except RuntimeError as error:
        fix = "see the daemon's last line in the logs of Ray's session"
        raise ConfigError("The replicas did not start", fix) from error


def _until_signal() -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    print("codespec: stopping; open requests finish first", flush=True)
