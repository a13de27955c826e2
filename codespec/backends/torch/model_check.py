"""Check a loaded model before it serves: its results through codespec's seam must match its own.

Before any part of the model is replaced, `models.reference` computes the logits of its own eager attention on a short
text. Afterwards, several sequences in one forward, continued from the cache, must give the same logits as each sequence
alone. Other texts in the batch must not change a sequence's logits beyond float32 rounding: a layer that mixes
sequences (a recurrent state, a convolution) changes them more, in every dtype.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from codespec.backends.rows import Rows
from codespec.backends.torch.experts import has_experts
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.recurrent.layer import RecurrentLayer
from codespec.errors import ModelError

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
ROUNDING = 1e-5  # of float32, relative to a row's largest logit; layers that mix sequences change 0.001 and more
SAMPLE = 24
LENGTHS = (5, 12, 9)
FAILURES = (  # errors of transformers if it can't build or run a model; ImportError for quantized models
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)

_RECURRENT = re.compile(
    r"Mamba\w*Mixer|MambaLayer|DeltaNet|RecurrentBlock|LightningAttention|LinearAttention|ShortConv|[ms]LSTM"
)


def sample_ids(vocab_size: int) -> list[int]:
    """Return a short sequence of distinct ids, skipping the first few, which are often control tokens."""
    return [(7 * i + 3) % max(8, min(vocab_size, 900)) for i in range(SAMPLE)]


def check_seam(model: TorchModel, reference: Tensor | None) -> None:
    """Raise ModelError unless the model computes the same logits with our attention.

    It must match `reference`, if given, and three sequences in one forward, continued from the cache, must match each
    sequence alone. Other neighbours must not change a sequence. Leaves the model without slots.
    """
    sample = sample_ids(model.spec.vocab_size)
    try:
        model.forward([Rows(0, 0, sample[:4])], cached=False)
        if not model.shapes and not model.states:
            raise ModelError(refusal(model.spec.architecture, "no layer calls it"))
        model.allocate(len(LENGTHS), SAMPLE)
        whole = model.forward([Rows(0, 0, sample, keep=SAMPLE)])
        alone = torch.cat([model.forward([Rows(0, 0, sample[i : i + n])]) for i, n in enumerate(LENGTHS)])
        ragged = _ragged(model, [sample[i : i + n] for i, n in enumerate(LENGTHS)])
        leak = _leak(model, sample, ragged)
    except FAILURES as error:
        raise ModelError(refusal(model.spec.architecture, why_unfit(model.network) or one_line(error))) from error
    compared = [("one sequence alone", ragged, alone)]
    if reference is not None:
        compared.insert(0, ("its own attention", whole, reference))
    # Native products are exact, but attention is float32 and its call shape is not settled yet: its last bits may
    # depend on the call, and a value near a rounding boundary may get another code. Exact mode compares bits once the
    # shape is settled (`call_search.settle`). This check detects a wrong seam, in fast mode too.
    form = torch.bfloat16 if model.spec.dtype == "native" else model.dtype
    for name, got, wanted in compared:
        difference = gap(got, wanted.to(got.device), form)
        if not difference <= TOLERANCE[form]:
            why = why_unfit(model.network) or f"it differs from {name} by {difference:.2g}"
            raise ModelError(refusal(model.spec.architecture, why))
    # Except in exact mode on a CPU, an expert may round differently if more or fewer rows choose it. So may a kernel,
    # which the search for a call shape detects.
    if not leak <= (TOLERANCE[form] if has_experts(model.network, stacked=model.exact) else ROUNDING):
        why = why_unfit(model.network) or f"other sequences change its results by {leak:.2g}"
        raise ModelError(refusal(model.spec.architecture, why))
    model.cache = None


def _ragged(model: TorchModel, texts: Sequence[Sequence[int]]) -> Tensor:
    """Run each text's ids but the last three in one forward and those in another; return the logits [texts, ids]."""
    model.forward([Rows(slot, 0, ids[:-3]) for slot, ids in enumerate(texts)])
    return model.forward([Rows(slot, len(ids) - 3, ids[-3:]) for slot, ids in enumerate(texts)])


def _leak(model: TorchModel, sample: Sequence[int], ragged: Tensor) -> float:
    """Return how much a text's logits change if only the content of the other texts changes, relative to the largest.

    All shapes stay the same, so that only a leak can change a bit.
    """
    most = 0.0
    for kept in range(len(LENGTHS)):
        texts = [sample[i : i + n] if i == kept else sample[::-1][i : i + n] for i, n in enumerate(LENGTHS)]
        changed = _ragged(model, texts)[kept]
        if not torch.equal(changed, ragged[kept]):
            most = max(most, gap(changed[None], ragged[kept, None], torch.float32), torch.finfo(torch.float32).tiny)
    return most


def why_unfit(network: nn.Module) -> str:
    """Return the reason why a network's layers can't keep sequences apart, or "" if none is known."""
    for module in network.modules():
        name = type(module).__name__
        if name.endswith("Indexer"):
            return "an indexer chooses the keys that its layers see"
        if isinstance(module, nn.Conv1d) or (_RECURRENT.search(name) and not isinstance(module, RecurrentLayer)):
            return "its layers keep a recurrent state of a kind that can't be rolled back yet"
    return ""


def gap(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> float:
    """Return the relative difference of logits [rows, vocabulary], each row scaled by its largest value.

    In float32 it is the worst row's difference. In reduced precision it is the median row's: a mixture of experts may
    route a row to another expert, while a wrong seam changes nearly all rows.
    """
    errors = (got - wanted).abs().amax(1) / wanted.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(errors.max() if dtype == torch.float32 else errors.median())


def one_line(error: BaseException) -> str:
    """Return the first sentence of an exception's message, short enough for a part of one."""
    return (" ".join(str(error).split()).partition(". ")[0] or type(error).__name__)[:200].rstrip(" .:")


def refusal(architecture: str, why: str) -> str:
    """Return the error message for an architecture that codespec can't run."""
    return (
        f"{architecture} does not run correctly through codespec's attention interface ({why}), so its cache could not "
        "be rolled back: choose another architecture (Llama, Qwen, Mistral, Gemma, GPT-NeoX, Phi-3, StarCoder2 … work)."
    )
