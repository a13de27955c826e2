"""deploy/: every file has the form that its program requires, and its commands are codespec's own.

What can run here runs: Caddy in front of a daemon, systemd's own check of the units, and (in `make test-full`) the
image's commands in a fresh environment.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from codespec.api.config import EngineConfig, ServeConfig
from codespec.api.settings import declared
from codespec.cli import build_parser
from tests.server.daemons import wait_for
from tests.server.fakes import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
IMAGES = ("Dockerfile", "Dockerfile.cuda")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = re.compile(r"^ExecStart=\S+", re.MULTILINE)
PIECES = 12  # of a stream through Caddy


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def understood(words: list[str]) -> argparse.Namespace:
    """Return the options of a command line. Flags of a feature that this checkout lacks are an error."""
    return build_parser().parse_args(words)


def steps(name: str) -> list[tuple[str, str]]:
    """Return an image's instructions as (name, rest)."""
    lines = [line for line in (DEPLOY / name).read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_starts_the_daemon_as_another_user(name: str) -> None:
    found = steps(name)
    assert {kind for kind, _ in found} <= {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "ENV", "EXPOSE"} | {
        "HEALTHCHECK",
        "ENTRYPOINT",
    }
    program, *words = json.loads(dict(found)["ENTRYPOINT"])
    options = understood(words)
    assert (program, options.command, options.host) == ("codespec", "serve", "0.0.0.0") and options.token_file
    kinds = [kind for kind, _ in found]
    assert kinds.index("USER") < kinds.index("ENTRYPOINT") and ("EXPOSE", str(ServeConfig().port)) in found
    installs = [rest for kind, rest in found if kind == "RUN" and "pip install" in rest]
    assert len(installs) == 1 and "-c constraints.txt" in installs[0]
    assert "./plugins/upstream" in installs[0], "kubernetes.yaml serves with --upstream"


def test_the_compose_file() -> None:
    (found,) = documents("compose.yaml")
    daemon, caddy = found["services"]["daemon"], found["services"]["caddy"]
    assert (DEPLOY / daemon["build"]["context"] / daemon["build"]["dockerfile"]).is_file()
    assert understood(["serve", *(word.partition(":-")[2].rstrip("}") or word for word in daemon["command"])])
    assert "ports" not in daemon, "only Caddy is reached from outside"
    assert caddy["environment"]["CODESPEC_DAEMON"] == f"daemon:{ServeConfig().port}"
    assert set(daemon["secrets"]) == set(found["secrets"]) and found["secrets"]["codespec_token"]["file"] == "./token"
    assert "deploy/token" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    named = {volume.partition(":")[0] for one in (daemon, caddy) for volume in one["volumes"]} - {"./Caddyfile"}
    assert named == set(found["volumes"])
    for service in (daemon, caddy):
        assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]


def test_the_manifest_in_front_of_vllm() -> None:
    deployment, service = documents("kubernetes.yaml")
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
    pod = deployment["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    (container,) = pod["spec"]["containers"]
    assert container["ports"][0] == {"name": service["spec"]["ports"][0]["targetPort"], "containerPort": 8765}
    assert {mount["name"] for mount in container["volumeMounts"]} == {one["name"] for one in pod["spec"]["volumes"]}
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    (token,) = (json.loads(rest)[5] for kind, rest in steps("Dockerfile") if kind == "ENTRYPOINT")
    args = container["args"]
    assert token in mounted and args[args.index("--upstream-token-file") + 1] in mounted
    assert pod["spec"]["terminationGracePeriodSeconds"] > ServeConfig().drain_seconds
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert understood(["serve", *args]).upstream == "http://vllm:8000"


def test_the_ray_service() -> None:
    (found,) = documents("kuberay.yaml")
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayService")
    cluster, serve = found["spec"]["rayClusterConfig"], yaml.safe_load(found["spec"]["serveConfigV2"])
    (application,) = serve["applications"]
    assert (application["import_path"], application["route_prefix"]) == ("codespec_scale:app", "/")
    known = {*declared(EngineConfig), *declared(ServeConfig), "replicas", "cpus", "gpus"}
    assert set(application["args"]) <= known
    head, (group,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == application["args"]["replicas"]
    for part in (head, group):
        (container,) = part["template"]["spec"]["containers"]
        variables = {one["name"]: one["value"] for one in container["env"]}
        assert variables["RAY_USAGE_STATS_ENABLED"] == "0"
        module, _, name = variables["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].rpartition(".")
        assert name in importlib.import_module(module).__all__
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert os.path.dirname(application["args"]["token_file"]) in mounts
        ports = [one["containerPort"] for one in container["ports"]]
        assert ports == [serve["http_options"]["port"]]
    assert (
        int(group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]) == application["args"]["cpus"]
    )
    if importlib.util.find_spec("ray") is not None:
        check = "import json, sys; from ray.serve.schema import ServeDeploySchema as S; S(**json.load(sys.stdin))"
        done = subprocess.run([sys.executable, "-c", check], input=json.dumps(serve), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_the_daemon(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    program, *words = shlex.split(line)
    assert program.endswith("/bin/codespec") and understood(words).command == "serve"
    stop = int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[0])
    assert stop > ServeConfig().drain_seconds
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(PROGRAM.sub("ExecStart=/bin/true", text), encoding="utf-8")
    manager = ["--user"] if "%h" in text else []
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    verify = ["systemd-analyze", *manager, "verify", str(copy)]
    done = subprocess.run(verify, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    if not manager:
        rate = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(copy)]
        done = subprocess.run(rate, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout.splitlines()[-1:]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def caddy(daemon: int, folder: Path) -> Iterator[tuple[int, ssl.SSLContext]]:
    """Run Caddy with our file in front of a daemon. Yield its port and a context that trusts its own certificate."""
    port, config = free_port(), folder / "Caddyfile"
    options = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n}\n"
    config.write_text(f"{options}import {DEPLOY / 'Caddyfile'}\n", encoding="utf-8")
    variables = {"CODESPEC_SITE": f"localhost:{port}", "CODESPEC_DAEMON": f"127.0.0.1:{daemon}"}
    environment = {**os.environ, **variables, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    words = ["caddy", "run", "--config", str(config), "--adapter", "caddyfile"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        root = folder / "caddy/pki/authorities/local/root.crt"
        assert wait_for(lambda: root.exists() and shakes_hands(port, root), 30), (folder / "log").read_text()
        yield port, ssl.create_default_context(cafile=str(root))
    finally:
        process.terminate()
        process.wait(30)


def shakes_hands(port: int, root: Path) -> bool:
    """Return whether Caddy has its certificate already."""
    try:
        context = ssl.create_default_context(cafile=str(root))
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            context.wrap_socket(plain, server_hostname="localhost").close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed")
def test_caddy_passes_each_event_at_once_and_an_early_end(tmp_path: Path) -> None:
    from tests.server.daemons import serving

    engine = FakeEngine(pause=0.1)
    with (
        serving(engine, host="0.0.0.0", token="a-token-of-some-length") as served,
        caddy(served.port, tmp_path) as (
            port,
            context,
        ),
    ):
        headers = {"Authorization": "Bearer a-token-of-some-length"}

        def stream(path: str, body: dict[str, Any]) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
            connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
            connection.request("POST", path, json.dumps(body), headers)
            return connection, connection.getresponse()

        for path, body in (
            ("/v1/codespec/complete", {"prefix": "abc", "max_tokens": PIECES, "shape": "raw"}),
            ("/v1/completions", {"prompt": "abd", "max_tokens": PIECES, "stream": True}),
            ("/api/generate", {"prompt": "abe", "options": {"num_predict": PIECES}, "raw": True}),
        ):
            connection, reply = stream(path, body)
            times = []
            while reply.read1(1 << 16):
                times.append(time.monotonic())
            connection.close()
            assert len(times) >= PIECES // 2 and times[-1] - times[0] > 0.05 * PIECES, (path, len(times))
        connection, reply = stream("/v1/codespec/complete", {"prefix": "abf", "max_tokens": 400, "shape": "raw"})
        assert reply.read1(10) and served.daemon.num_open == 1
        reply.close()
        connection.close()
        assert wait_for(lambda: served.daemon.num_open == 0), "the daemon writes on for a client that has left"


@pytest.mark.full
def test_the_images_commands_run(tmp_path: Path) -> None:
    """The build stage's commands in a copy of the tracked files, with a folder of its own; then the daemon starts."""
    tree, venv = tmp_path / "src", tmp_path / "venv"
    tree.mkdir()
    tracked = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=tracked, check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:{environment['PATH']}"
    for kind, rest in steps("Dockerfile"):
        if kind == "RUN" and "/opt/codespec" in rest:
            command = rest.replace("/opt/codespec", str(venv)).replace("RUN python ", "RUN python3 ")
            done = subprocess.run(command, shell=True, cwd=tree, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length")
    (entry,) = (json.loads(rest) for kind, rest in steps("Dockerfile") if kind == "ENTRYPOINT")
    words = [str(token) if word.startswith("/run/secrets/") else word for word in entry[1:]]
    command = [str(venv / "bin" / entry[0]), *words, "--port", "0", "--model", "starter"]
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(command, cwd=tmp_path, env=environment | state, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert any(line.startswith(b"codespec: ready") for line in process.stdout)
        process.terminate()
        assert process.wait(60) == 0
