"""The Ray Serve application: one deployment whose replicas each run a daemon.

Ray's consistent-hash router sends all requests with the same `x-session-id` to the same replica, which then has the
document in its cache. Requests without the header go to any replica. A stopping replica gets no new requests and
finishes its open requests, so an update drops no stream.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from codespec.client.starter import with_absolute_paths
from codespec.errors import ConfigError
from codespec_scale.replica import END_SECONDS, Replica

ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
DEPLOYMENT = "codespec"
GATHER_SECONDS = 5.0
MAX_OPEN = 512  # concurrent requests of one replica; the daemon's own queue is smaller
OWN = ("replicas", "cpus", "gpus", "token_file")


class Daemon:
    """The class of the deployment. A `Replica`, its ASGI application, does the work."""

    async def metrics(self, authorization: str) -> tuple[str, bytes]:
        """Return the replica's name and its metrics in Prometheus' text format."""
        return await Replica.here.metrics(authorization)


def app(settings: Mapping[str, Any]) -> Any:
    """Build the application for `serve run codespec_scale:app replicas=2 model=starter …`. Raises ConfigError.

    The settings are `replicas`, `cpus` and `gpus` for each replica, `token_file`, and all settings of `codespec serve`.
    """
    words = [word for name, value in settings.items() if name not in OWN for word in _flag(name, value)]
    token_file = os.path.abspath(settings["token_file"]) if settings.get("token_file") else ""
    replica = Replica(with_absolute_paths(words), token_file, _replica_name, gather=gather_metrics)
    deployment = serve.deployment(serve.ingress(replica)(Daemon))
    return deployment.options(
        name=DEPLOYMENT,
        num_replicas=_whole(settings, "replicas", 1),
        max_ongoing_requests=MAX_OPEN,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        health_check_period_s=1,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=END_SECONDS + 10,
        ray_actor_options={
            "num_cpus": _whole(settings, "cpus", 1),
            "num_gpus": _whole(settings, "gpus", 0),
        },
    ).bind()


async def gather_metrics(authorization: str) -> dict[str, bytes]:
    """Return the metrics of all replicas that answer within GATHER_SECONDS, by the replica's name."""
    handle = serve.get_deployment_handle(DEPLOYMENT, serve.get_replica_context().app_name)
    try:
        replies = await handle.broadcast("metrics", authorization).results_async(
            timeout_s=GATHER_SECONDS, return_exceptions=True
        )
    except TimeoutError:
        return {}
    return dict(reply for reply in replies if not isinstance(reply, BaseException))


def _whole(settings: Mapping[str, Any], name: str, default: int) -> int:
    text = str(settings.get(name, default))
    if not text.isdecimal() or (name == "replicas" and int(text) < 1):
        raise ConfigError(f"{name} = {text} is not a valid number", "give a whole number, for example 2")
    return int(text)


def _flag(name: str, value: Any) -> list[str]:
    """Return a setting as command-line words. A boolean becomes `--flag` or `--no-flag`."""
    flag = name.replace("_", "-")
    if str(value).lower() in ("true", "false"):
        return [f"--{flag}" if str(value).lower() == "true" else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def _replica_name() -> str:
    return str(serve.get_replica_context().replica_id.unique_id)
