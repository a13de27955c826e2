"""What a loaded model says of held-out text, and how long it takes: bits per byte, milliseconds per token.

Any model behind the seam will do. Each excerpt's body is spelled on its own, so that every vocabulary is asked for the
same bytes. Knows one model; knows no engine and no drafts. Uses slot 0, which must be free.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from codespec.models.language_model import LanguageModel
from codespec.models.rows import Rows
from codespec.training.gaps import Excerpt
from codespec.training.progress import Steps
from codespec.training.rates import Table

LONGEST = 2048  # tokens
TIMED_CONTEXT, WARM_UP, TIMED = 256, 8, 48


def bits_per_byte(model: LanguageModel, excerpts: Mapping[str, Sequence[Excerpt]], steps: Steps) -> Table:
    """Bits over bytes by row. What does not fit into the model's length is left out, bits and bytes alike."""
    model.allocate(1, min(LONGEST, model.spec.max_length))
    table = Table()
    for row, found in excerpts.items():
        for excerpt in found:
            table.add(row, *_bits(model, excerpt))
            steps.advance()
    return table


@torch.inference_mode()
def _bits(model: LanguageModel, excerpt: Excerpt) -> tuple[float, int]:
    """Bits to predict an excerpt's body after its lead, and the body's bytes."""
    tokenizer = model.tokenizer
    room = min(LONGEST, model.spec.max_length)
    lead = [*tokenizer.bos_ids, *tokenizer.encode(excerpt.lead)][-(room // 2) :]
    body = tokenizer.encode_inside(excerpt.body)[: room - len(lead)]
    model.admit(0, len(lead) + len(body))
    logits = model.forward([Rows(0, 0, [*lead, *body], keep=len(body) + 1)])[:-1]  # [body, vocabulary]
    wanted = torch.tensor(body, dtype=torch.long, device=logits.device)
    nats = torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
    return float(nats) / math.log(2), len(tokenizer.decode_bytes(body))


@torch.inference_mode()
def ms_per_token(model: LanguageModel, text: str) -> float:
    """Median milliseconds of one greedy token behind up to 256 tokens of text, batch 1, plain."""
    model.allocate(1, min(LONGEST, model.spec.max_length))
    ids = [*model.tokenizer.bos_ids, *model.tokenizer.encode(text)]
    ids = ids[: min(TIMED_CONTEXT, model.spec.max_length - WARM_UP - TIMED)]
    model.admit(0, len(ids) + WARM_UP + TIMED)
    times, start = [], 0
    for _ in range(WARM_UP + TIMED):
        begun = time.perf_counter()
        ids.append(int(model.forward([Rows(0, start, ids[start:])])[0].argmax()))
        times.append(1000 * (time.perf_counter() - begun))
        start = len(ids) - 1
    return statistics.median(times[WARM_UP:])
