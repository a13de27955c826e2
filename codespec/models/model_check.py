"""What the loader demands of a model before it serves: the same results through codespec's seam as on its own, and as
alone.

Before anything of a model is replaced, `models.reference` keeps the logits of its own eager attention on a short text.
Afterwards: several sequences in one forward, continued from the cache, must give what each gives alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codespec.errors import ModelError
from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}
SAMPLE = 24
LENGTHS = (5, 12, 9)
FAILURES = (  # what transformers raises for a model that it can't make or run; ImportError for quantized ones
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


def sample_ids(vocab_size: int) -> list[int]:
    """A short text of different ids without the first few, which are often control tokens."""
    return [(7 * i + 3) % max(8, min(vocab_size, 900)) for i in range(SAMPLE)]


def check_seam(model: LanguageModel, reference: Tensor | None) -> None:
    """Raises ModelError unless the model computes `reference`, if given, through the seam, and three sequences in one
    forward, continued from the cache, give what each gives alone. Leaves the model without slots.
    """
    sample = sample_ids(model.spec.vocab_size)
    try:
        model.forward([Rows(0, 0, sample[:4])], cached=False)
        if not model.shapes:
            raise ModelError(refusal(model.spec.architecture, "no layer calls it"))
        model.allocate(len(LENGTHS), SAMPLE)
        whole = model.forward([Rows(0, 0, sample, keep=SAMPLE)])
        alone = torch.cat([model.forward([Rows(0, 0, sample[i : i + n])]) for i, n in enumerate(LENGTHS)])
        model.forward([Rows(i, 0, sample[i : i + n - 3]) for i, n in enumerate(LENGTHS)])
        ragged = model.forward([Rows(i, n - 3, sample[i + n - 3 : i + n]) for i, n in enumerate(LENGTHS)])
    except FAILURES as error:
        raise ModelError(refusal(model.spec.architecture, one_line(error))) from error
    compared = [("one sequence alone", ragged, alone)]
    if reference is not None:
        compared.insert(0, ("its own attention", whole, reference))
    # int8 products are exact, but attention is float32 and its shape of call has not been tried yet: its last bits may
    # depend on the call, and a value on the other side of a half gets another code. Bits are compared, in exact mode,
    # once the shape is settled (`call_search.settle`). This check looks for a wrong seam, in fast mode too.
    form = torch.bfloat16 if model.spec.dtype == "int8" else model.dtype
    for name, got, wanted in compared:
        found = gap(got, wanted.to(got.device), form)
        if not found <= TOLERANCE[form]:
            raise ModelError(refusal(model.spec.architecture, f"it differs from {name} by {found:.2g}"))
    model.cache = None


def gap(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> float:
    """Relative difference of logits [rows, vocabulary], each row by its own largest: the worst row's in float32.

    In reduced precision it is the median row's: there a mixture of experts may choose another expert for a row, while a
    wrong seam moves nearly all rows.
    """
    errors = (got - wanted).abs().amax(1) / wanted.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(errors.max() if dtype == torch.float32 else errors.median())


def one_line(error: BaseException) -> str:
    """What an exception says, on one line and short enough for a sentence."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200].rstrip(" .:")


def refusal(architecture: str, why: str) -> str:
    """The sentence for an architecture that codespec can't run."""
    return (
        f"{architecture} does not run correctly through codespec's attention interface ({why}), so its cache could not "
        "be rolled back: choose another architecture (Llama, Qwen, Mistral, Gemma, GPT-NeoX, Phi-3, StarCoder2 … work)."
    )
