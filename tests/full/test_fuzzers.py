"""Run the fuzzers against the real processes, for a minute each or FUZZ_MINUTES (`python -m tools.fuzz`)."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import randn

from tests.backends.gguf.files import write_model
from tests.cli.conftest import Models, models  # noqa: F401
from tests.cli.processes import user_environment
from tests.full import fuzz_folders, fuzz_http, fuzz_rpc
from tests.full.fuzzing import Finding, dice
from tests.server.conftest import TEMPLATE
from tests.server.test_process import daemon

pytestmark = pytest.mark.full


def test_http(models: Models, tmp_path: Path) -> None:  # noqa: F811
    """A daemon with a FIM and chat model answers everything, and its log stays empty."""
    target = Path(shutil.copytree(models.target, tmp_path / "target"))
    (target / "chat_template.jinja").write_text(TEMPLATE)
    homes = user_environment(XDG_STATE_HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    words = [*Models(target, models.drafter).flags, "--threads", "1"]
    with (tmp_path / "log").open("wb") as log, daemon(*words, env=homes, stderr=log) as served:
        served.until_ready()
        fuzzer = fuzz_http.Fuzzer(served, dice("http"))
        fuzzer.run()
        print(dict(fuzzer.statuses))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(120) == 0
    message = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("codespec: ")]
    if message:
        raise Finding("the log holds " + "\n".join(message[:40]), "see the seed")
    assert {200, 400} <= set(fuzzer.statuses)


def test_rpc(tmp_path: Path) -> None:
    fuzz_rpc.run(str(tmp_path), dice("rpc"))


def test_folders(models: Models, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "gguf").mkdir()
    gguf = write_model(tmp_path / "gguf" / "m.gguf", form="Q8_0")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(
        json.dumps({**settings, "base_model_name_or_path": str(models.target)})
    )
    layers = [f"base_model.model.model.layers.{number}.self_attn.q_proj" for number in range(2)]
    tensors = {f"{layer}.lora_A.weight": randn(2, 128) for layer in layers}
    tensors |= {f"{layer}.lora_B.weight": randn(128, 2) for layer in layers}
    save_file(tensors, adapter / "adapter_model.safetensors")
    fuzzer = fuzz_folders.Fuzzer(models.target, gguf, adapter, tmp_path, dice("folders"))
    fuzzer.run()
    print(fuzzer.codes)
