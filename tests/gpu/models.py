"""Tiny random models on a GPU with captured graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import TorchModel
from codespec.text.tokenizer import TextTokenizer
from tests.tiny_models import tiny_network

# Library versions other than the project's may warn; these tests allow it.
gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.filterwarnings("default"),
]
FLOATS = [torch.float32, torch.bfloat16]
GRAPH_ROWS = 48
FORMS = {  # features of each architecture
    "llama": "lean blocks, groups",
    "qwen2": "a window in one layer",
    "gemma2": "soft caps and a window",
    "phi3": "a rotary chosen per request",
    "gpt2": "learned positions",
}


def on_gpu(
    architecture: str,
    dtype: torch.dtype = torch.float32,
    *,
    exact: bool = True,
    graph_rows: int = GRAPH_ROWS,
    **more: Any,
) -> TorchModel:
    """Return a model whose every `allocate` captures graphs of up to `graph_rows` rows (0: none)."""
    network = tiny_network(architecture, dtype=dtype, **more)
    return with_graphs(behind_the_seam(network, None, architecture, dtype, exact), graph_rows)


def behind_the_seam(
    network: Any, tokenizer: TextTokenizer | None, name: str, dtype: torch.dtype, exact: bool
) -> TorchModel:
    """Wrap the network as a TorchModel on the GPU."""
    return wrap(network.to(dtype), tokenizer, name, device=torch.device("cuda"), dtype=dtype, exact=exact)


def check_captured(problem: str) -> None:
    """Assert that all steps were captured."""
    assert problem == ""


def with_graphs(model: TorchModel, graph_rows: int) -> TorchModel:
    """Make the model capture graphs at every `allocate`, and return it."""
    plain = model.allocate

    def allocate(slots: int, capacity: int) -> None:
        plain(slots, capacity, graph_rows)
        check_captured(model.capture())

    model.allocate = allocate  # type: ignore[method-assign,assignment]
    return model
