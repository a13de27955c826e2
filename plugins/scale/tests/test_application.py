"""The Ray application, built but not deployed. Skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import codespec_scale
import pytest

from tests.cli.processes import user_environment

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ./plugins/scale"
)
BUILD = """
from codespec_scale import app, middlewares
from codespec_scale.relay import Relay
built = app({"replicas": "2", "gpus": 1, "model": "starter", "prefetch": "False", "caps": "comment=3", "target": "./m"})
deployment = built._bound_deployment
assert deployment.num_replicas == 2 and deployment.name == "codespec"
assert deployment.ray_actor_options["num_gpus"] == 1 and deployment.ray_actor_options["num_cpus"] == 1
config = deployment._deployment_config
assert config.request_router_config.get_request_router_class().__name__ == "ConsistentHashRouter"
assert config.graceful_shutdown_timeout_s > 30
assert [one.cls for one in middlewares()] == [Relay]
for bad in ({"replicas": 0}, {"replicas": "x"}, {"cpus": -1}):
    try:
        app(bad)
    except Exception as error:
        assert type(error).__name__ == "ConfigError" and "whole number" in str(error), error
    else:
        raise AssertionError(bad)
"""


@needs_ray
def test_the_application() -> None:
    environment = user_environment(RAY_USAGE_STATS_ENABLED="0")
    done = subprocess.run([sys.executable, "-c", BUILD], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_no_other_name_is_exported() -> None:
    with pytest.raises(AttributeError):
        codespec_scale.attic  # noqa: B018
