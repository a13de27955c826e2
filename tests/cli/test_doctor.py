"""`codespec doctor` reports each problem with its remedy on one line, and continues with the other checks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from codespec import __version__
from codespec.api.config import EngineConfig
from codespec.backends.loader import load_model
from codespec.backends.torch.linear import TiledLinear
from codespec.cli import machine_checks
from codespec.cli.machine_checks import needed_bytes, slot_size, weight_size
from codespec.errors import ConfigError
from codespec.pair import ModelFacts, read_facts
from codespec.store.catalogue import TORCH_ROOM, read_catalogue
from codespec.store.machine import IDLE_FACTOR, Processor
from codespec.store.model_folder import Weights
from codespec.store.resolve import resolve
from tests.cli.conftest import Command, Look, Models, lines_of, varies, write_model
from tests.cli.processes import fork
from tests.cli.test_light import ABSENT, BASE_FIX, FIX
from tests.cli.test_stats import folder  # noqa: F401
from tests.server import fakes
from tests.server.daemons import serving

Patch = pytest.MonkeyPatch


def test_all_is_well(command: Command, models: Models) -> None:
    done = command("doctor", "--target", models.target, "--drafter", models.drafter)
    found = lines_of(done)
    assert (done.code, done.out.splitlines()[-1]) == (0, "all is well"), done.out
    for name in ("python", "packages", "settings", "target", "drafter", "fill-in", "cores", "memory", "cache"):
        assert found[name].startswith("ok"), found[name]
    assert found["probe"].startswith("ok: 24 tokens twice, equal (") and " 0 drafted" not in found["probe"]
    assert f"codespec {__version__}" in found["python"] and "torch" in found["packages"]
    assert re.match(r"ok: exact mode holds: \d+ tokens are equal in chunks and at once$", found["arithmetic"])


def test_json_says_the_same(command: Command, models: Models) -> None:
    words = ("doctor", "--no-probe", "--target", models.target, "--drafter", "none", "--threads", "250")
    told = json.loads(command(*words, "--json").out)
    assert told["ok"] and {check["state"] for check in told["checks"]} == {"ok", "warning"}
    found = lines_of(command(*words))
    for check in told["checks"]:
        message = f"{check['message']}: {check['fix']}" if check["fix"] else check["message"]
        if check["name"] != "memory":  # free memory changes
            assert found[check["name"]] == f"{check['state']}: {message}"


@pytest.mark.parametrize(("missing", "fix"), [("torch", FIX), ("aiohttp", BASE_FIX)])
def test_without_the_engines_packages(missing: str, fix: str, models: Models) -> None:
    words = ("doctor", "--target", models.target, "--drafter", models.drafter)
    done = fork(*words, before=ABSENT.format(blocked=(missing,)))
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{missing} is not installed: {fix}\n" in done.stdout
    for name in ("target", "drafter", "memory", "port"):
        assert f"ok       {name} " in done.stdout
    assert "not tried: fix the failed checks above first" in done.stdout


def test_packages_that_do_not_load(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: EngineConfig) -> None:
        raise ConfigError("They do not load (libgomp): reinstall them.")

    monkeypatch.setattr(machine_checks, "require_engine", fail)
    assert look("--device", "cuda")["packages"] == "failed: They do not load (libgomp): reinstall them"


def test_a_missing_package_hurts_less_where_a_daemon_answers(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "ENGINE_PACKAGES", ("torchless",))
    assert look()["packages"].startswith("failed: torchless is not installed")
    with serving(fakes.FakeEngine()) as served:
        found = look("--url", f"http://127.0.0.1:{served.port}")
    assert found["packages"].startswith("warning: torchless is not installed") and found["code"] == "0"


def test_models_that_are_gone_or_broken(look: Look, tmp_path: Path, models: Models) -> None:
    gone = look(target=tmp_path / "none", drafter=models.drafter)
    assert gone["target"].startswith("failed: There is no model folder") and gone["drafter"].startswith("ok")
    assert "memory" not in gone and gone["code"] == "1"
    broken = write_model(tmp_path / "broken", "bytes", 0)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert "truncated or corrupt: download" in look(drafter=broken)["drafter"]
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    weights.write_bytes((models.drafter / "model.safetensors").read_bytes())
    assert "recurrent layers" in look(drafter=broken)["drafter"]


def test_a_hub_id_is_not_fetched(look: Look) -> None:
    found = look(drafter="nobody/nothing")
    assert found["drafter"].startswith("warning: nobody/nothing is a hub id and not on this machine yet: ")
    assert found["code"] == "0"


def test_a_target_that_does_not_fill_in(look: Look, tmp_path: Path) -> None:
    plain = write_model(tmp_path / "plain", "bytes", 0)
    tokenizer = plain / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("fim", "xyz"))
    found = look(target=plain)
    assert found["fill-in"].startswith("warning: the text after the cursor is not used (")


def test_settings_that_cannot_be_read(look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CODESPEC_SERVE_PORT")
    file = tmp_path / "codespec.toml"
    file.write_text("dtyp = 3\n[serve]\nport = 99999\n")
    found = look("--config", file)
    assert "Unknown setting dtyp" in found["settings"] and found["serve"].startswith(
        "failed: port = 99999 is too large"
    )
    assert found["cache"].startswith("ok") and "port" not in found
    assert "http://HOST:PORT" in look("--url", "x")["serve"]


@pytest.mark.parametrize(("free", "state"), [(0.1, "failed"), (1.1, "warning"), (10, "ok"), (None, "ok")])
def test_memory(free: float | None, state: str, look: Look, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    _, needed = needed_bytes(EngineConfig(), read_facts(resolve(str(models.target))), None)
    monkeypatch.setattr(machine_checks, "available_memory", lambda: None if free is None else int(free * needed))
    message = look()["memory"]
    assert message.startswith(f"{state}: about 0.5 GB needed, up to {needed / 1e9:.1f} GB as the caches fill"), (
        "the program; the tests' weights are tiny"
    )


def test_one_rule_gives_the_memory_of_the_list_and_of_doctor() -> None:
    """A GGUF file in the kernels' own format takes its size: its rows are repacked, not widened to a byte a weight."""
    entry = read_catalogue()["qwen2.5-coder-0.5b-instruct"]
    weights = Weights(entry.parameters, "Q5_0")
    facts = ModelFacts("x", {}, weights, None, (), file_bytes=entry.size)
    config = EngineConfig(dtype=entry.dtype, drafter="none")
    assert entry.dtype == "native" and needed_bytes(config, facts, None)[0] == entry.memory
    floats = replace(config, dtype="bfloat16")
    assert needed_bytes(floats, facts, None)[0] == 2 * entry.parameters + TORCH_ROOM
    assert weight_size(replace(facts, file_bytes=0), "native") == entry.parameters, "floats become eight bits"


def test_the_estimate_is_what_is_allocated(models: Models) -> None:
    facts, model = read_facts(resolve(str(models.target))), load_model(str(models.target))
    model.allocate(3, 1024)
    assert model.cache is not None and 3 * slot_size(facts, "float32", 1024) == model.cache.nbytes
    assert weight_size(facts, "float32") == 4 * model.spec.parameters
    config = EngineConfig(max_batch=3, context=1024)
    start, full = needed_bytes(config, facts, None)
    assert full - start == IDLE_FACTOR * model.cache.nbytes


def test_a_large_cache_needs_memory(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "available_memory", lambda: 4_000_000 << 10)
    assert look()["memory"].startswith("ok")
    monkeypatch.setenv("CODESPEC_CACHE_MB", "4000")
    assert look()["memory"].startswith("failed: about 0.5 GB needed, up to 4.") and "cache_mb" in look()["memory"]


def test_threads_cores_and_formats(look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_checks, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("codespec.store.machine.processor", lambda: Processor("any", (), (), 1))
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    found = look("--threads", "2", "--dtype", "bfloat16")
    assert found["cores"].endswith("on 1 usable core(s) wait for each other: set threads = 1 or less")
    assert found["dtype"].startswith("warning: this processor has no bfloat16 products")
    assert found["dtype"].endswith('set dtype = "native"')
    monkeypatch.setattr(machine_checks, "has_native", lambda: False)
    assert look("--threads", "2", "--dtype", "bfloat16")["dtype"].endswith('set dtype = "float32"')
    (tmp_path / "cpu.max").write_text("max 100000\n")
    found = look("--threads", "1")
    assert found["cores"].startswith("ok") and "dtype" not in found


def test_a_gpu_that_is_not_there(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert look("--device", "cuda")["device"].startswith("failed: device = 'cuda', but ")
    assert look("--device", "auto")["device"].startswith("ok")


def arithmetic(command: Command, models: Models, *words: str) -> str:
    """Return the doctor's line on arithmetic, which never makes the doctor fail."""
    found = lines_of(command("doctor", "--target", models.target, "--drafter", "none", *words))
    assert found["code"] == "0" and found["probe"].startswith("ok")
    return found["arithmetic"]


def test_fast_mode_is_reported_and_nothing_is_tried(command: Command, models: Models, monkeypatch: Patch) -> None:
    monkeypatch.setattr("codespec.startup.batch_invariance.find_variance", None)
    message = arithmetic(command, models, "--mode", "fast")
    assert message == "ok: fast mode is set, so texts may differ at near-ties; exact mode was not tried"


def warned(variance: str) -> str:
    return (
        f"warning: exact mode does not hold here ({variance}), so texts may differ at near-ties: "
        'set mode = "fast" to accept that, or report it'
    )


def test_a_start_that_varies(command: Command, models: Models, monkeypatch: Patch) -> None:
    varies(monkeypatch)
    assert arithmetic(command, models) == warned("it varies")


def test_products_that_vary(command: Command, models: Models, monkeypatch: Patch) -> None:
    """A sum over neighbouring rows leaks into each row."""
    multiply = TiledLinear.multiply

    def leak(layer: TiledLinear, rows: torch.Tensor) -> torch.Tensor:
        return multiply(layer, rows) + 1e-6 * rows.nan_to_num(0.0, 0.0).clamp(-1, 1).mean()

    monkeypatch.setattr(TiledLinear, "multiply", leak)
    told = json.loads(command("doctor", "--target", models.target, "--drafter", "none", "--json").out)
    (found,) = [check for check in told["checks"] if check["name"] == "arithmetic"]
    message = warned("the logits of LlamaForCausalLM depend on how rows are batched (float32)")
    assert f"{found['state']}: {found['message']}: {found['fix']}" == message


def test_what_a_daemon_reports_of_its_arithmetic(look: Look) -> None:
    for mode, variance, message in (
        ("exact", "", ""),
        ("fast", "a (b) c", warned("a (b) c")),
    ):
        engine = fakes.FakeEngine()
        engine.mode, engine.variance = mode, variance
        with serving(engine) as served:
            assert look("--url", f"http://127.0.0.1:{served.port}").get("arithmetic", "") == message
    assert "arithmetic" not in look(), "without a probe no model is loaded"
