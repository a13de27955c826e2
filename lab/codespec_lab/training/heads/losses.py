"""Losses of the heads: cross-entropy against the target's probabilities over the draft vocabulary.

EAGLE-3 learns by training-time test (Li et al. 2025): it is unrolled over several draft steps, reading its own states
as it does when it drafts. DFlash fills blocks after random anchors (Chen et al. 2026). Positions near the anchor weigh
more, because a draft ends at its first wrong token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from codespec.models.heads.networks import DFlash, Eagle3, HeadRotary
from codespec_lab.training.heads.features import Lesson

CHUNK = 512  # rows whose logits are in memory at once
PROMPT_WEIGHT = 0.5  # of a position in the prompt
BEFORE = 96  # last positions of the prompt at which drafts also begin
STEP_FACTOR = 0.8  # weight of a draft step relative to the previous one
ANCHORS = 32  # blocks per lesson


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The draft vocabulary.

    `ids` [draft vocabulary] are target token ids and `rows` their rows of the target's output head. `places` maps each
    target token to its index in the draft vocabulary (-1: not in it).
    """

    ids: Tensor
    rows: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True)
class Guess:
    """One draft step of a lesson.

    `states` [N, hidden], normed for the output head, predict the tokens at `positions` [N]. `weights` [N] are loss
    weights; `begins` [N] is the anchor position of the draft each row belongs to.
    """

    states: Tensor
    positions: Tensor
    weights: Tensor
    begins: Tensor


def eagle3_guesses(head: Eagle3, rotation: HeadRotary, embed: Any, lesson: Lesson, steps: int) -> Iterator[Guess]:
    """Yield one guess per draft step. Row t reads the target's features up to t; step j predicts token t + 2 + j."""
    length, device = len(lesson.ids), lesson.ids.device
    first = max(0, lesson.begin - BEFORE - 2)  # the first row that drafts further than one step
    states = head.fuse(lesson.features[: max(0, length - 2)])
    begins = torch.arange(len(states), device=device)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(steps):
        if step:  # drop rows without a label, and at step 1 the early prompt
            kept = slice(first if step == 1 else 0, len(states) - 1)
            states, begins = states[kept], begins[kept]
        if not len(states):
            return
        angles = rotation.at(begins + step, states.dtype)
        q, k, v = head.midlayer.read(embed(lesson.ids[begins + 1 + step]), states, angles)
        keys.append(k)
        values.append(v)
        seen = _attend_unrolled(q, keys, values, begins, head.midlayer.self_attn.scale)
        states = head.midlayer.finish(states, seen)
        positions = begins + 2 + step
        weights = torch.where(positions >= lesson.begin, 1.0, PROMPT_WEIGHT) * STEP_FACTOR**step
        yield Guess(head.norm(states), positions, weights, begins)


def _attend_unrolled(q: Tensor, keys: list[Tensor], values: list[Tensor], begins: Tensor, scale: float) -> Tensor:
    """Attend from row t to the target's features up to t and to its own earlier steps: [N, heads, size]."""
    groups, length = q.shape[1] // keys[0].shape[1], len(keys[0])
    rows = (q * scale).unflatten(1, (-1, groups))  # [N, kv heads, groups, size]
    scores = torch.einsum("nkgs,tks->nkgt", rows, keys[0])
    hidden = torch.arange(length, device=q.device)[None] > begins[:, None]
    scores = scores.float().masked_fill(hidden[:, None, None], -torch.inf)
    mine = [(rows * part[: len(q), :, None]).sum(-1, keepdim=True).float() for part in keys[1:]]
    probabilities = torch.cat([scores, *mine], dim=-1).softmax(-1).to(q.dtype)
    seen = torch.einsum("nkgt,tks->nkgs", probabilities[..., :length], values[0])
    for step, part in enumerate(values[1:]):
        seen = seen + probabilities[..., length + step, None] * part[: len(q), :, None]
    return seen.flatten(1, 2)


def dflash_guesses(
    head: DFlash, rotation: HeadRotary, embed: Any, lesson: Lesson, anchors: int, generator: torch.Generator
) -> Iterator[Guess]:
    """Yield a single guess that covers all blocks after random anchors."""
    block, length, device = head.config.block, len(lesson.ids), lesson.ids.device
    first = max(1, lesson.begin - BEFORE - 1)
    room = length - 1 - first
    if room < 1:
        return
    picked = torch.randperm(room, generator=generator)[:anchors].sort().values.to(device) + first
    places = picked[:, None] + torch.arange(block, device=device)  # [anchors, block]
    context = head.fuse(lesson.features)
    rows = head.mask.to(context.dtype).expand(*places.shape, -1).clone()
    rows[:, 0] = embed(lesson.ids[picked]).to(context.dtype)
    rows = rows.flatten(0, 1)
    context_angles = rotation.at(torch.arange(length, device=device), context.dtype)
    block_angles = rotation.at(places.flatten(), context.dtype)
    hidden = torch.arange(length, device=device)[None] >= picked.repeat_interleave(block)[:, None]
    for layer in head.layers:
        rows = layer.finish(rows, _attend_blocks(layer, context, context_angles, rows, block_angles, hidden, block))  # type: ignore[operator]
    rows = head.norm(rows.unflatten(0, (-1, block))[:, 1:].flatten(0, 1))
    positions = places[:, 1:].flatten()
    decay = torch.arange(block - 1, device=device).div(-max(1.0, block / 2)).exp().repeat(len(picked))
    weights = decay * (positions < length) * torch.where(positions >= lesson.begin, 1.0, PROMPT_WEIGHT)
    begins = picked.repeat_interleave(block - 1)
    yield Guess(rows, positions.clamp(max=length - 1), weights, begins)


def _attend_blocks(
    layer: Any, context: Tensor, context_angles: Any, rows: Tensor, block_angles: Any, hidden: Tensor, block: int
) -> Tensor:
    """Attend from each row to the context before its anchor and to its whole block: [rows, heads, size]."""
    keys, values = layer.context(context, context_angles)
    q, k, v = layer.read(rows, block_angles)
    groups = q.shape[1] // k.shape[1]
    q = (q * layer.self_attn.scale).unflatten(1, (-1, groups))
    scores = torch.einsum("nkgs,tks->nkgt", q, keys).float().masked_fill(hidden[:, None, None], -torch.inf)
    blocks = [part.unflatten(0, (-1, block)) for part in (q, k, v)]
    inside = torch.einsum("bnkgs,bmks->bnkgm", blocks[0], blocks[1]).float().flatten(0, 1)
    probabilities = torch.cat([scores, inside], dim=-1).softmax(-1).to(rows.dtype)
    seen = torch.einsum("nkgt,tks->nkgs", probabilities[..., : len(keys)], values)
    mixed = torch.einsum("bnkgm,bmks->bnkgs", probabilities[..., len(keys) :].unflatten(0, (-1, block)), blocks[2])
    return (seen + mixed.flatten(0, 1)).flatten(1, 2)


class _SparseLoss(torch.autograd.Function):
    """Cross-entropy against sparse probabilities, chunk by chunk.

    The forward pass computes the gradient, so backward only scales it. The output head is the target's and is not
    trained.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, rows: Tensor, places: Tensor, probabilities: Tensor, weights: Tensor
    ) -> Tensor:
        total = torch.zeros((), device=states.device)
        gradient = torch.empty_like(states)
        for begin in range(0, len(states), CHUNK):
            part = slice(begin, begin + CHUNK)
            logits = (states[part].to(rows.dtype) @ rows.T).float()
            logs = functional.log_softmax(logits, dim=1)
            wanted, scale = probabilities[part], weights[part, None]
            total -= (logs.gather(1, places[part]) * wanted * scale).sum()
            logs.exp_().mul_(scale * wanted.sum(1, keepdim=True))
            logs.scatter_add_(1, places[part], -wanted * scale)
            gradient[part] = (logs.to(rows.dtype) @ rows).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None


def guess_loss(guess: Guess, lesson: Lesson, vocabulary: Vocabulary) -> tuple[Tensor, float]:
    """Return the weighted sum of a guess's nats, and the sum of the weights.

    Probability of tokens outside the draft vocabulary is ignored.
    """
    before = guess.positions - 1
    places = vocabulary.places[lesson.likely[before]]
    known = places >= 0
    probabilities = lesson.probabilities[before] * known
    total: Tensor = _SparseLoss.apply(  # type: ignore[no-untyped-call]
        guess.states, vocabulary.rows, places.clamp(min=0), probabilities, guess.weights
    )
    return total, float((probabilities.sum(1) * guess.weights).sum())


@torch.no_grad()
def accepted_runs(guesses: list[Guess], lesson: Lesson, vocabulary: Vocabulary) -> tuple[int, int]:
    """Return the number of correct leading tokens over all drafts that begin in the text, and of these drafts."""
    right: dict[int, list[tuple[int, bool]]] = {}
    for guess in guesses:
        chosen = vocabulary.ids[(guess.states.to(vocabulary.rows.dtype) @ vocabulary.rows.T).argmax(1)]
        hits = chosen == lesson.ids[guess.positions]
        live = guess.weights > 0
        for begin, position, hit in zip(
            guess.begins[live].tolist(), guess.positions[live].tolist(), hits[live].tolist(), strict=True
        ):
            if begin + 1 >= lesson.begin:
                right.setdefault(begin, []).append((position, hit))
    taken = 0
    for found in right.values():
        for _, hit in sorted(found):
            if not hit:
                break
            taken += 1
    return taken, len(right)
