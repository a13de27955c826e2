"""Mixtures of experts: as linear layers they compute what transformers computes, whoever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from codespec.backends.torch import experts
from codespec.backends.torch.experts import Experts, has_experts, unstack_experts
from codespec.backends.torch.linear import NativeLinear, TiledLinear
from codespec.backends.torch.loader import wrap
from codespec.startup.batch_invariance import find_variance
from tests.backends.rounds import Replay, covering
from tests.backends.test_seam import eager_logits
from tests.tiny_models import MIXTURES, tiny_model, tiny_network

LENGTH = 60
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("architecture", MIXTURES)
def test_every_matrix_is_a_linear_layer_and_shares_the_stacks_memory(architecture: str) -> None:
    network = tiny_network(architecture)
    held = {weight.data_ptr() for name, weight in network.named_parameters() if "down_proj" in name}
    assert has_experts(network, stacked=True) and unstack_experts(network) > 0
    assert has_experts(network) and not has_experts(network, stacked=True)
    (first, *_) = (module for module in network.modules() if isinstance(module, Experts))
    assert len(first.first) == len(first.second) == 4
    assert first.second[0].weight.data_ptr() in held


@pytest.mark.parametrize("architecture", MIXTURES)
def test_no_product_of_an_exact_model_is_left_to_torch(architecture: str) -> None:
    model = tiny_model(architecture)
    names = [name for name, part in model.network.named_modules() if isinstance(part, TiledLinear)]
    assert sum(".experts." in name for name in names) == 2 * 4 * sum(
        isinstance(part, Experts) for part in model.network.modules()
    )
    assert any("products.of float32" in name for name in names), "the router's"


@pytest.mark.parametrize("architecture", ["mixtral", "gpt_oss", "deepseek_v3"])
def test_with_native_products_experts_are_packed_and_exact(architecture: str) -> None:
    model = wrap(
        tiny_network(architecture),
        None,  # type: ignore[arg-type]  # no text is read
        architecture,
        device=torch.device("cpu"),
        dtype=torch.float32,
        exact=True,
        native=True,
    )
    assert any(".experts." in name and isinstance(part, NativeLinear) for name, part in model.network.named_modules())
    model.allocate(2, 128)
    assert Replay(model, LENGTH).play(covering(LENGTH)) == 0.0


def drops_an_expert(patch: Patch) -> None:
    plain = Experts.forward

    def forward(self: Experts, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        return plain(self, states, chosen, weights * (chosen != 1))

    patch.setattr(Experts, "forward", forward)


def gives_rows_to_another_expert(patch: Patch) -> None:
    plain = Experts.forward
    patch.setattr(Experts, "forward", lambda self, states, chosen, weights: plain(self, states, chosen ^ 1, weights))


def forgets_the_weights(patch: Patch) -> None:
    plain = Experts.forward
    patch.setattr(Experts, "forward", lambda self, states, chosen, _: plain(self, states, chosen, torch.ones_like(_)))


@pytest.mark.parametrize("fault", [drops_an_expert, gives_rows_to_another_expert, forgets_the_weights])
@pytest.mark.parametrize("architecture", ["gpt_oss", "deepseek_v3"])
def test_a_wrong_mixture_shows(architecture: str, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    model, logits = tiny_model(architecture), eager_logits(architecture, LENGTH)
    assert Replay(model, LENGTH, logits).play(covering(LENGTH)) <= 1e-4
    fault(monkeypatch)
    assert Replay(model, LENGTH, logits).play(covering(LENGTH)) > 1e-3


def sums_in_the_order_of_arrival(patch: Patch) -> None:
    """Adds each expert's rows to one sum, so the order depends on which experts the batch needs."""

    def forward(self: Experts, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros_like(states)
        order = chosen.unique().tolist()
        for expert in order if len(states) % 2 else reversed(order):
            row, place = torch.where(chosen == expert)
            written = self.second[expert](self._activate(self.first[expert](states[row])))
            total.index_add_(0, row, written * weights[row, place, None])
        return total

    patch.setattr(Experts, "forward", forward)


def counts_the_rows(patch: Patch) -> None:
    plain = experts.RouterProduct.__torch_function__

    def vary(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = plain(self, func, types, args, kwargs)
        return out * (1.0 + 1e-5 * (len(out) > 4)) if func is torch.nn.functional.linear else out

    patch.setattr(experts.RouterProduct, "__torch_function__", vary)


@pytest.mark.parametrize("fault", [sums_in_the_order_of_arrival, counts_the_rows])
def test_what_depends_on_the_batch_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    model = tiny_model("qwen3_moe", num_experts_per_tok=3)
    model.allocate(2, 128)
    assert find_variance(model) == ""
    fault(monkeypatch)
    assert "depend" in find_variance(model)
