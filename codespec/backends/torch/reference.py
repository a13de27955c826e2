"""Reference results from transformers, for the loader to compare with.

Provides a configuration validated against the weights, the logits of the model's own eager attention, and a check of
attention windows. transformers initializes missing weights at the size that config.json claims, so `read_config` first
counts, without allocating, what it would create. A layer's own mask is compared with the window that the layer passes
to its attention: some architectures put the window in the mask only, and a short text would not reveal a window of
4096.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from codespec.backends.torch.attention import NAME
from codespec.backends.torch.model_check import FAILURES, one_line, refusal, sample_ids
from codespec.errors import ModelError
from codespec.store.model_config import check_claims, not_held, quantization_of, why_unsuitable
from codespec.store.weights import StoredTensor
from codespec.text.tokenizer_json import read_json

PROBE = "codespec-window-probe"
OWN = "eager"  # the attention that each architecture has itself
PACKED = 8  # four-bit values in a 32-bit integer
SLACK, SPARE = 2, 1 << 24  # allowance beyond its weights: a factor, and values for tables
_JSON = ("config.json", "generation_config.json", "model.safetensors.index.json")


def read_config(folder: Path) -> Any:
    """Return transformers' configuration of a folder, which dequantizes quantized weights while it loads them.

    Raise ModelError if it can't be read or claims more than the weights hold.
    """
    for name in _JSON:
        read_json(folder / name)  # transformers reads them without a size limit
    tensors = check_claims(folder)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (*FAILURES, StrictDataclassError) as error:
        raise ModelError(
            f"The configuration of {folder} can't be read ({one_line(error)})", "check the folder or hub id"
        ) from error
    reason = why_unsuitable(config.to_dict())
    if reason is not None:
        raise ModelError(reason.within(f"{folder} can't be used"))
    if quantization_of(config.to_dict()):
        config.quantization_config["dequantize"] = True
        _demand_scales(folder, tensors)
    _demand_weights(folder, config, tensors)
    return config


def _demand_scales(folder: Path, tensors: Sequence[StoredTensor]) -> None:
    """Raise ModelError if a weight in 8 bits has no scales: transformers would take its codes for its values."""
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        layer = tensor.name.removesuffix(".weight")
        scales = (f"{tensor.name}_scale_inv", f"{layer}.scale", f"{layer}.qscale_weight")
        if tensor.dtype.startswith("F8_E4M3") and len(tensor.shape) > 1 and names.isdisjoint(scales):
            raise ModelError(f"The weights of {folder} lack {scales[0]}", "fetch or export the model again")


def _demand_weights(folder: Path, config: Any, tensors: Sequence[StoredTensor]) -> None:
    """Raise ModelError if the model would be larger than its weights."""
    held = sum(tensor.count * (PACKED if tensor.dtype[0] in "IU" else 1) for tensor in tensors)
    loader: Any = AutoModelForCausalLM
    try:
        with quiet(), torch.device("meta"):
            network = loader.from_config(copy.deepcopy(config), trust_remote_code=False)
    except FAILURES as error:
        raise ModelError(
            f"The model {folder} can't be loaded ({one_line(error)})", "check the folder or choose another model"
        ) from error
    claimed = sum(part.numel() for part in chain(network.parameters(), network.buffers()))
    if claimed > SLACK * held + SPARE:
        raise not_held(folder, f"{claimed / 1e9:.3g} billion numbers", f"{held / 1e9:.3g} billion")


class WindowProbe:
    """An attention function that computes nothing and records the windows of each layer's mask and attention."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []  # layer, its mask's window, its attention's window; 0: none

    def mask(self, *, q_length: int, kv_length: int, local_size: int | None = None, **_: object) -> Tensor:
        """Replace transformers' mask function and fill the mask with its window, which survives a slice of it."""
        return torch.full((1, 1, q_length, kv_length), float(local_size or 0))

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        sliding_window: int | None = None,
        **_: object,
    ) -> tuple[Tensor, None]:
        """Record the layer's windows; return zeros [1, N, heads, value_size]."""
        layer: int = module.layer_idx  # type: ignore[assignment]
        masked = 0 if attention_mask is None else int(attention_mask.max())
        self.seen.append((layer, masked, sliding_window or 0))
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


def check_windows(network: Any, max_length: int) -> None:
    """Raise ModelError if a layer's mask has a window below `max_length` that its attention does not receive."""
    probe = WindowProbe()
    AttentionInterface.register(PROBE, probe.attend)
    AttentionMaskInterface.register(PROBE, probe.mask)
    _run(network, PROBE, [0, 1])
    for layer, masked, attended in probe.seen:
        if masked != attended and min(w for w in (masked, attended) if w) < max_length:
            why = f"layer {layer} has a window of {masked} in its mask and of {attended} in its attention"
            raise ModelError(refusal(type(network).__name__, why))


def reference_logits(network: Any) -> Tensor:
    """Return logits [SAMPLE, vocabulary] of the network's own eager attention, masks and positions."""
    return _run(network, OWN, sample_ids(network.config.get_text_config().vocab_size))


@torch.inference_mode()
def _run(network: Any, attention: str, ids: list[int]) -> Tensor:
    """Return float32 logits [ids, vocabulary] with another attention, then restore ours."""
    device = network.get_input_embeddings().weight.device
    with quiet():
        try:
            network.set_attn_implementation(attention)
            logits: Tensor = network(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]
        except FAILURES as error:
            if attention != OWN:
                _run(network, OWN, ids)  # raises if not the attention is at fault, but the configuration
                raise ModelError(refusal(type(network).__name__, one_line(error))) from error
            raise ModelError(
                f"{type(network).__name__} can't run as its configuration says ({one_line(error)})",
                "check config.json or choose another model",
            ) from error
        finally:
            network.set_attn_implementation(NAME)
    return logits.float()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings; real problems raise."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
