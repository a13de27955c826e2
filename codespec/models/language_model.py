"""A causal language model as the engine sees it: ids in, logits out, a length to set. The only caller of a transformers
forward. Knows no text, no requests and no sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from codespec.models.attention import Seam, Span, Step
from codespec.models.cache import KVCache, LayerShape
from codespec.models.rotary import Frequencies, RequestRotary
from codespec.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Rows:
    """What one sequence brings to a forward: ids for positions start, start+1, … of its slot; logits of the last
    `keep`.
    """

    slot: int
    start: int
    ids: Sequence[int]
    keep: int = 1


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Facts about a loaded model, for reports. `parameters` counts tied weights once; `max_length` is in tokens;
    `simulated` names the shape that the model was padded to.
    """

    name: str
    architecture: str
    parameters: int
    vocab_size: int
    max_length: int
    dtype: str
    lean: bool = False
    packed: bool = False
    simulated: str = ""
    notes: tuple[str, ...] = ()


class LanguageModel:
    """A model with its tokenizer and its KV slots. Rows of several sequences go through one flat forward."""

    def __init__(
        self,
        network: nn.Module,
        seam: Seam,
        rotary: RequestRotary | None,
        tokenizer: TextTokenizer,
        spec: ModelSpec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        exact: bool,
    ) -> None:
        self.network = network
        self.tokenizer = tokenizer
        self.spec = spec
        self.token_bytes = padded_bytes(tokenizer, spec.vocab_size)
        self.device = device
        self.dtype = dtype
        self.exact = exact
        self.choosable = spec.vocab_size  # ids from here on only pad the vocabulary: they are never chosen
        self.shapes: dict[int, LayerShape] = {}
        self.cache: KVCache | None = None
        self._seam = seam
        self._rotary = rotary
        self._frequencies: dict[int, Frequencies] = {}  # slot -> what rotates it

    def allocate(self, slots: int, capacity: int) -> None:
        """Makes `slots` cache slots of `capacity` positions; whatever was cached is gone."""
        self.cache = KVCache(self.shapes, slots, capacity, self.dtype, self.device)
        self._frequencies.clear()

    def rotary_key(self, length: int) -> int:
        """Names the rotation of a sequence that may grow to `length`; prefixes are shared under equal keys only."""
        return 0 if self._rotary is None else self._rotary.frequencies(length).key

    def admit(self, slot: int, length: int, cached: int = 0) -> None:
        """Begins a sequence that may grow to `length` in `slot`, of which `cached` positions are there already."""
        assert self.cache is not None
        self.cache.rollback(slot, cached)
        if self._rotary is not None:
            self._frequencies[slot] = self._rotary.frequencies(length)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows], cached: bool = True) -> Tensor:
        """Runs all rows at once and sets each slot's length behind its last row.

        Returns float32 logits [sum of keep, vocabulary], sequence by sequence; those of ids that only pad are minus
        infinity. `cached=False` probes shapes and writes nothing.
        """
        step, ids, positions, kept = self._lay_out(batch, self.cache if cached else None)
        self._seam.step = step
        try:
            logits: Tensor = self.network(
                input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=kept
            ).logits[0]
        finally:
            self._seam.step = None
        assert len(logits) == len(kept), "the model ignores logits_to_keep"
        if not self.shapes:
            self.shapes = step.shapes
        if step.cache is not None:
            for rows in batch:
                step.cache.lengths[rows.slot] = rows.start + len(rows.ids)
        logits = logits[: sum(rows.keep for rows in batch)].float()
        logits[:, self.choosable :] = -torch.inf
        return logits

    def rollback(self, slot: int, length: int) -> None:
        """Cuts a slot back to `length` positions."""
        assert self.cache is not None
        self.cache.rollback(slot, length)

    def _lay_out(self, batch: Sequence[Rows], cache: KVCache | None) -> tuple[Step, Tensor, Tensor, Tensor]:
        ids: list[int] = []
        positions: list[int] = []
        kept: list[int] = []
        spans: list[Span] = []
        for rows in batch:
            begin, end = len(ids), len(ids) + len(rows.ids)
            spans.append(Span(rows.slot, rows.start, begin, end))
            ids.extend(rows.ids)
            positions.extend(range(rows.start, rows.start + len(rows.ids)))
            kept.extend(range(end - rows.keep, end))
        step = Step(spans, cache, self.exact)
        if self._rotary is not None:
            step.inverse_frequencies, step.rotary_scale = self._rotation(spans)
        flat = [torch.tensor(values, dtype=torch.long, device=self.device) for values in (ids, positions, kept or [0])]
        return step, flat[0][None], flat[1][None], flat[2]

    def _rotation(self, spans: Sequence[Span]) -> tuple[Tensor, Tensor]:
        assert self._rotary is not None
        default = self._rotary.frequencies(1)
        chosen = [self._frequencies.get(span.slot, default) for span in spans]
        inverse = torch.cat([f.inverse.expand(s.rows, -1) for f, s in zip(chosen, spans, strict=True)])
        scale = torch.cat([torch.full((s.rows, 1), f.scale) for f, s in zip(chosen, spans, strict=True)])
        return inverse.to(self.device), scale.to(self.device)


def padded_bytes(tokenizer: TextTokenizer | None, vocab_size: int) -> list[bytes]:
    """The bytes of every id the model can choose; models often have more rows than their tokenizer has ids."""
    spelled = tokenizer.token_bytes if tokenizer is not None else []
    return (spelled + [b""] * (vocab_size - len(spelled)))[:vocab_size]
