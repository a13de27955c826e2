"""Held-out bits per byte: how well a model predicts source text it never saw. Knows no training state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from codespec.training.llama import TinyLlama
from codespec.training.samples import Spelling

EXCERPT_CHARS = 1500


def held_out_excerpts(files: Sequence[tuple[str, Path]], count: int) -> list[str]:
    """`count` excerpts of about 1,500 characters: the middles of evenly spaced files, from a line start."""
    excerpts = []
    texts = [path.read_text(encoding="utf-8") for _, path in files]
    long = [text for text in texts if len(text) >= 2 * EXCERPT_CHARS]
    for index in range(min(count, len(long))):
        text = long[index * len(long) // min(count, len(long))]
        start = text.find("\n", (len(text) - EXCERPT_CHARS) // 2) + 1
        excerpts.append(text[start : start + EXCERPT_CHARS])
    return excerpts


@torch.no_grad()
def bits_per_byte(model: TinyLlama, tokenizer: Tokenizer, excerpts: Sequence[str]) -> float:
    """Bits to predict one byte, over all excerpts; each is read alone, its first token is free."""
    spelling = Spelling(tokenizer)
    device = next(model.parameters()).device
    nats, size = 0.0, 0
    for text in excerpts:
        ids = torch.tensor([spelling.start(text)[: model.shape.max_positions]], device=device)
        with torch.autocast(device.type, torch.bfloat16):
            nats += float(model.loss(ids[:, :-1], ids[:, 1:])) * (ids.shape[1] - 1)
        size += len(text.encode())
    return nats / math.log(2) / size
