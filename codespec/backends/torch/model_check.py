"""Check a model folder, and check that codespec's attention gives the same results as the model's own attention.

Since transformers initializes missing weights at the size that config.json claims, `read_config` first counts the
values that transformers would create, without allocating them. Before any part of the model is replaced,
`reference_logits` computes the logits of a short text with the architecture's eager attention. After the replacement,
several sequences in one forward pass, continued from the cache, must give the same logits as each sequence alone. Other
texts in the batch must not change a sequence's logits beyond float32 rounding; a layer that mixes sequences (a
recurrent state, a convolution) changes the logits more, in every dtype.

`check_windows` compares the window in a layer's mask with the window that the layer passes to its attention. Some
architectures apply the window only in the mask, and a short text would not reveal a window of 4096 tokens.
"""

from __future__ import annotations

import copy
import re
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

from codespec.backends.language_model import Rows
from codespec.backends.torch.attention import NAME
from codespec.backends.torch.experts import has_experts
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.recurrent_layers import RecurrentLayer
from codespec.errors import ModelError
from codespec.files import read_json
from codespec.store.model_folder import StoredTensor, check_claims, not_held, quantization_of, why_unsuitable

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
ROUNDING = 1e-5  # of float32, relative to a row's largest logit; a layer that mixes sequences changes 0.001 or more
SAMPLE = 24
LENGTHS = (5, 12, 9)
# Errors of transformers if it can't build or run a model. ImportError occurs with quantized models.
FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError),
    *(OSError, RuntimeError, TypeError, ValueError),
)

_RECURRENT = re.compile(
    r"Mamba\w*Mixer|MambaLayer|DeltaNet|RecurrentBlock|LightningAttention|LinearAttention|ShortConv|[ms]LSTM"
)


def sample_ids(vocab_size: int) -> list[int]:
    """Return a short sequence of token ids without the first few ids, which are often control tokens."""
    return [(7 * i + 3) % max(8, min(vocab_size, 900)) for i in range(SAMPLE)]


def check_seam(model: TorchModel, reference: Tensor) -> None:
    """Raise ModelError unless codespec's attention gives the logits `reference`, for a text alone and in a batch.

    The check leaves the model without allocated cache slots.
    """
    sample = sample_ids(model.spec.vocab_size)
    try:
        model.forward([Rows(0, 0, sample[:4])], cached=False)
        if not model.shapes and not model.states:
            raise refusal(model.spec.architecture, "no layer calls the interface")
        model.allocate(len(LENGTHS), SAMPLE)
        whole = model.forward([Rows(0, 0, sample, keep=SAMPLE)])
        alone = torch.cat([model.forward([Rows(0, 0, sample[i : i + n])]) for i, n in enumerate(LENGTHS)])
        ragged = _ragged(model, [sample[i : i + n] for i, n in enumerate(LENGTHS)])
        leak = _leak(model, sample, ragged)
    except FAILURES as error:
        raise refusal(model.spec.architecture, why_unfit(model.network) or one_line(error)) from error
    # In exact mode `startup.batch_invariance` compares bits. This check detects wrong attention, in fast mode too.
    form = torch.bfloat16 if model.spec.dtype == "native" else model.dtype
    problems = []
    for name, got, wanted in (("its own attention", whole, reference), ("each sequence alone", ragged, alone)):
        difference = gap(got, wanted.to(got.device), form)
        if not difference <= TOLERANCE[form]:
            problems.append(f"its logits differ from those with {name} by {difference:.2g}")
    # Except in exact mode on a CPU, an expert may round differently when other rows choose it too.
    if not leak <= (TOLERANCE[form] if has_experts(model.network, stacked=model.exact) else ROUNDING):
        problems.append(f"other sequences change its results by {leak:.2g}")
    if problems:
        raise refusal(model.spec.architecture, why_unfit(model.network) or problems[0])
    model.cache = None


def _ragged(model: TorchModel, texts: Sequence[Sequence[int]]) -> Tensor:
    """Run all but the last three ids of each text in one forward pass, then the last three ids in another."""
    model.forward([Rows(slot, 0, ids[:-3]) for slot, ids in enumerate(texts)])
    return model.forward([Rows(slot, len(ids) - 3, ids[-3:]) for slot, ids in enumerate(texts)])


def _leak(model: TorchModel, sample: Sequence[int], ragged: Tensor) -> float:
    """Return the largest relative change of a text's logits when only the content of the other texts changes."""
    most = 0.0
    for kept in range(len(LENGTHS)):
        texts = [sample[i : i + n] if i == kept else sample[::-1][i : i + n] for i, n in enumerate(LENGTHS)]
        changed = _ragged(model, texts)[kept]
        if not torch.equal(changed, ragged[kept]):
            most = max(most, gap(changed[None], ragged[kept, None], torch.float32), torch.finfo(torch.float32).tiny)
    return most


def why_unfit(network: nn.Module) -> str:
    """Return the known reason why a network's layers can't separate sequences, or ""."""
    for module in network.modules():
        name = type(module).__name__
        if name.endswith("Indexer"):
            return "an indexer chooses the keys to which its layers attend"
        if isinstance(module, nn.Conv1d) or (_RECURRENT.search(name) and not isinstance(module, RecurrentLayer)):
            return "its layers keep a recurrent state of a kind that can't be rolled back yet"
    return ""


def gap(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> float:
    """Return the relative difference between two sets of logits [rows, vocabulary], scaled by each row's maximum.

    In float32 the result is the worst row's difference. In reduced precision the result is the median row's
    difference, because a mixture of experts may route a row to another expert, but wrong attention changes most rows.
    """
    errors = (got - wanted).abs().amax(1) / wanted.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(errors.max() if dtype == torch.float32 else errors.median())


def one_line(error: BaseException) -> str:
    """Return the first sentence of an exception's message, cut to 200 characters, for quoting in another sentence."""
    return (" ".join(str(error).split()).partition(". ")[0] or type(error).__name__)[:200].rstrip(" .:")


def refusal(architecture: str, why: str) -> ModelError:
    """Return the error for an architecture that codespec can't run."""
    return ModelError(
        f"{architecture} does not run correctly through codespec's attention interface ({why}), so its cache could not "
        "be rolled back",
        "choose another architecture, for example Llama, Qwen, Mistral, Gemma, Phi-3 or StarCoder2",
    )


PROBE = "codespec-window-probe"
OWN = "eager"  # the attention implementation of each architecture
PACKED = 8  # four-bit values in a 32-bit integer
SLACK, SPARE = 2, 1 << 24  # how far a model may exceed its weights: a factor, and a number of values for tables
_JSON = ("config.json", "generation_config.json", "model.safetensors.index.json")


def read_config(folder: Path) -> Any:
    """Return transformers' configuration of a folder, set to dequantize quantized weights while they are loaded.

    Raise ModelError if the configuration can't be read or describes a model larger than its weights.
    """
    for name in _JSON:
        read_json(folder / name)  # checks the size; transformers reads these files without a limit
    tensors = check_claims(folder)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (*FAILURES, StrictDataclassError) as error:
        what = f"The configuration of {folder} can't be read ({one_line(error)})"
        raise ModelError(what, "check the folder, or the hub id of the model") from error
    reason = why_unsuitable(config.to_dict())
    if reason is not None:
        raise ModelError(reason.within(f"{folder} can't be used"))
    if quantization_of(config.to_dict()):
        config.quantization_config["dequantize"] = True
        _demand_scales(folder, tensors)
    _demand_weights(folder, config, tensors)
    return config


def _demand_scales(folder: Path, tensors: Sequence[StoredTensor]) -> None:
    """Raise ModelError if an 8-bit weight has no scales, without which transformers would misread the weight."""
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        layer = tensor.name.removesuffix(".weight")
        scales = (f"{tensor.name}_scale_inv", f"{layer}.scale", f"{layer}.qscale_weight")
        if tensor.dtype.startswith("F8_E4M3") and len(tensor.shape) > 1 and names.isdisjoint(scales):
            raise ModelError(f"The weights of {folder} lack {scales[0]}", "download or export the model again")


def _demand_weights(folder: Path, config: Any, tensors: Sequence[StoredTensor]) -> None:
    """Raise ModelError if the model described by config.json is much larger than the folder's weights."""
    held = sum(tensor.count * (PACKED if tensor.dtype[0] in "IU" else 1) for tensor in tensors)
    loader: Any = AutoModelForCausalLM
    try:
        with quiet(), torch.device("meta"):
            network = loader.from_config(copy.deepcopy(config), trust_remote_code=False)
    except FAILURES as error:
        raise ModelError(
            f"The model {folder} can't be loaded ({one_line(error)})", "check the folder, or choose another model"
        ) from error
    claimed = sum(part.numel() for part in chain(network.parameters(), network.buffers()))
    if claimed > SLACK * held + SPARE:
        raise not_held(folder, f"{claimed / 1e9:.3g} billion numbers", f"{held / 1e9:.3g} billion")


def check_windows(network: Any, max_length: int) -> None:
    """Raise ModelError if the windows of a layer's mask and attention differ and the smaller is below `max_length`."""
    seen: list[tuple[int, int, int]] = []  # layer, window of its mask, window of its attention; 0: none

    def mask(*, q_length: int, kv_length: int, local_size: int | None = None, **_: object) -> Tensor:
        """Return a mask filled with the window's size, which can be read even after a layer slices the mask."""
        return torch.full((1, 1, q_length, kv_length), float(local_size or 0))

    def attend(
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
        seen.append((layer, masked, sliding_window or 0))
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    AttentionInterface.register(PROBE, attend)
    AttentionMaskInterface.register(PROBE, mask)
    _run(network, PROBE, [0, 1])
    for layer, masked, attended in seen:
        if masked != attended and min(w for w in (masked, attended) if w) < max_length:
            why = f"layer {layer} has a window of {masked} in its mask and of {attended} in its attention"
            raise refusal(type(network).__name__, why)


def reference_logits(network: Any) -> Tensor:
    """Return logits [SAMPLE, vocabulary] computed with the network's own eager attention, masks and positions."""
    return _run(network, OWN, sample_ids(network.config.get_text_config().vocab_size))


@torch.inference_mode()
def _run(network: Any, attention: str, ids: list[int]) -> Tensor:
    """Return float32 logits [ids, vocabulary] with the named attention function, then restore codespec's attention."""
    device = network.get_input_embeddings().weight.device
    with quiet():
        try:
            network.set_attn_implementation(attention)
            logits: Tensor = network(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]
        except FAILURES as error:
            if attention != OWN:
                _run(network, OWN, ids)  # raises if the configuration is at fault, not the attention
                raise refusal(type(network).__name__, one_line(error)) from error
            what = f"{type(network).__name__} can't run with the values of its configuration ({one_line(error)})"
            raise ModelError(what, "correct config.json, or choose another model") from error
        finally:
            network.set_attn_implementation(NAME)
    return logits.float()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings inside the context; errors are still raised."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
