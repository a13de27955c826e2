"""Eight bits for a drafter: near the plain products, never for a target, and refused where they are wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from codespec.config import STARTER, EngineConfig
from codespec.errors import ConfigError, ModelError
from codespec.models import linear, loader
from codespec.models.linear import QuantizedLinear, can_quantize
from codespec.models.loader import load_model
from codespec.models.rows import Rows
from codespec.types import CompletionRequest
from tests.pairs import build, model, prompts, total

needs_int8 = pytest.mark.skipif(bool(can_quantize()), reason=can_quantize() or "int8 works")


@needs_int8
@settings(max_examples=30)
@given(st.integers(4, 80), st.integers(1, 80), st.integers(1, 9), st.booleans())
def test_near_the_plain_product(inner: int, outer: int, rows: int, biased: bool) -> None:
    torch.manual_seed(inner + 100 * outer)
    plain = nn.Linear(inner, outer, bias=biased).requires_grad_(False)
    inputs = torch.randn(rows, 1, inner)
    got, wanted = QuantizedLinear(plain.weight, plain.bias)(inputs), plain(inputs)
    assert got.shape == wanted.shape
    scale = (inputs.abs() @ plain.weight.abs().T).max()
    assert (got - wanted).abs().max() <= 0.02 * scale


@needs_int8
def test_neighbours_change_a_row() -> None:
    """Why no target may have it: one scale serves all rows."""
    layer = QuantizedLinear(torch.randn(16, 32, generator=torch.Generator().manual_seed(1)), None)
    row = torch.randn(1, 32, generator=torch.Generator().manual_seed(2))
    assert not torch.equal(layer(torch.cat([row, 30 * row]))[:1], layer(row))


def test_a_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="neighbours change a target's choices: set it as drafter_dtype"):
        EngineConfig(dtype="int8", drafter_dtype="int8")
    assert EngineConfig(drafter_dtype="int8").dtype == "float32"


def test_where_it_is_wrong_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = QuantizedLinear.forward
    monkeypatch.setattr(QuantizedLinear, "forward", lambda self, inputs: 0.9 * plain(self, inputs))
    assert "wrong on this processor" in can_quantize()
    monkeypatch.setattr(loader, "can_quantize", lambda: "it is an old machine")
    with pytest.raises(
        ModelError, match="int8 is not available here: it is an old machine; use drafter dtype bfloat16"
    ):
        load_model(str(STARTER / "drafter"), dtype="int8")


def test_a_torch_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("no kernel\nand more")

    monkeypatch.setattr(linear.torch, "quantize_per_channel", gone)
    assert can_quantize() == "torch's 8-bit product is not usable (no kernel)"


@needs_int8
def test_the_starter_drafter_guesses_nearly_the_same() -> None:
    rounded, plain = (load_model(str(STARTER / "drafter"), dtype=kind) for kind in ("int8", "float32"))
    assert rounded.spec.dtype == "int8" and not [m for m in rounded.network.modules() if isinstance(m, nn.Linear)]
    ids = plain.tokenizer.encode(prompts(2)[1])
    best = []
    for one in (rounded, plain):
        one.allocate(2, 512)
        one.admit(0, 500)
        best.append(one.forward([Rows(0, 0, ids, keep=len(ids))]).argmax(dim=1))
    assert (best[0] == best[1]).float().mean() > 0.8


@needs_int8
def test_the_text_is_the_targets() -> None:
    """The drafter is rounded, the text is not."""
    requests = [CompletionRequest(prefix=prefix, max_tokens=12, temperature=0.7) for prefix in prompts(3)]
    target, drafter = model("llama", "gpt2"), load_model(str(STARTER / "drafter"), dtype="int8")
    plain = build(target).complete(requests)
    done = build(target, drafter=drafter).complete(requests)
    assert [one.token_ids for one in done] == [one.token_ids for one in plain] and total(done).drafted
