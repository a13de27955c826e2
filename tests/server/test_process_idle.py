"""`codespec serve` as a real process, idle: its memory returns to the system, and its texts stay the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import fork
from tests.server.daemons import wait_for
from tests.server.test_process import Process, daemon
from tests.server.test_process_limits import memory
from tests.tiny_models import tiny_network
from tests.toy_tokenizers import toy_backend

PATH = "/v1/codespec/complete"
IDLE_MINUTES = 0.02
SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 5, "num_attention_heads": 8}
SIZES |= {"num_key_value_heads": 8, "head_dim": 64}


def write_large(folder: Path) -> int:
    """Write a random Llama with weights of tens of megabytes in eight bits. Return its number of weights."""
    backend = toy_backend("gpt2")
    network = tiny_network("llama", vocab_size=backend.get_vocab_size(), **SIZES)
    network.to(torch.bfloat16).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return sum(weight.numel() for weight in network.parameters())


def state_of(served: Process) -> str:
    return str(json.loads(served.ask("GET", "/v1/codespec/stats")[1])["daemon"]["state"])


def complete(served: Process, **more: Any) -> str:
    values = {"prefix": "def area(radius):\n    ", "max_tokens": 24, "shape": "raw", **more}
    status, reply = served.ask("POST", PATH, values)
    assert status == 200
    blocks = [block.split("\ndata: ") for block in reply.decode().split("\n\n") if block.startswith("event: text")]
    return "".join(json.loads(data)["text"] for _, data in blocks)


@pytest.fixture(params=["native", pytest.param("float32", marks=pytest.mark.full)])
def large(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Process, int]]:
    """Run a daemon with a large model in this format; yield it with the bytes of its weights."""
    weights = write_large(tmp_path / "model")
    words = ("--target", tmp_path / "model", "--drafter", "none", "--dtype", request.param, "--threads", "1")
    with daemon(*words, "--idle-unload", str(IDLE_MINUTES), "--no-prefetch", "--context", "512") as served:
        served.until_ready()
        yield served, weights * {"native": 1, "float32": 4}[request.param]


def test_the_memory_returns(large: tuple[Process, int]) -> None:
    """After every load; allocators keep a varying rest."""
    served, weights = large
    texts, loaded, freed = [], [], []
    for _ in range(3):
        texts.append(complete(served))
        loaded.append(memory(served))
        assert wait_for(lambda: state_of(served) == "idle")
        freed.append(memory(served))
    assert weights > 20 << 20 and len(set(texts)) == 1 and texts[0]
    returned = [(full - rest) / weights for full, rest in zip(loaded, freed, strict=True)]
    assert min(returned) > 0.9, f"{returned} of {weights >> 20} MB"
    assert freed[-1] - freed[0] < weights, "twice that if every load left its model behind"


def test_a_pair_writes_the_same_before_and_after(models: Models) -> None:  # noqa: F811
    with daemon(*models.flags, "--idle-unload", str(IDLE_MINUTES)) as served:
        served.until_ready()
        before = complete(served)
        assert wait_for(lambda: state_of(served) == "idle")
        assert complete(served) == before == complete(served, speculate=False) and before


def test_a_bad_value_is_one_sentence(models: Models) -> None:  # noqa: F811
    done = fork("serve", *models.flags, "--idle-unload", "-1")
    assert (done.returncode, done.stderr) == (
        2,
        "codespec: idle_unload = -1.0 is too small: it must be at least 0.0.\n",
    )
