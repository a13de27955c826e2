"""A causal language model computed by torch: the backend for GPUs, and for models without a native implementation.

In a step over "spans", the default on a CPU, the host computes attention span by span. In a step on the "device", the
rows are in device tensors, so that the step can be captured and replayed as a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from codespec.backends.language_model import GRAPH_ROWS, LanguageModel, Logits, ModelSpec, Progress, Rows, kept_rows
from codespec.backends.torch.attention import ForwardContext, Heads, Seam, Span
from codespec.backends.torch.cache import KVCache, LayerShape, cache_bytes
from codespec.backends.torch.cuda.graphs import StepRunner
from codespec.backends.torch.cuda.launch import DeviceRows, tile_positions
from codespec.backends.torch.lean import Taps, attach_taps
from codespec.backends.torch.linear import ROWS, tiled_linears
from codespec.backends.torch.recurrent_states import States, StateShape, branching_points
from codespec.backends.torch.rotary import RequestRotary
from codespec.text.tokenizer import TextTokenizer

Steps = Literal["spans", "device"]


class TorchModel(LanguageModel):
    """A transformers network with its KV cache. Rows of several sequences share one flat forward pass."""

    checked = True

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
        steps: Steps | None = None,
    ) -> None:
        super().__init__(tokenizer, spec, device=device, exact=exact)
        self.network = network
        self.device: torch.device = device
        self.dtype = dtype
        self.threads: int | None = None  # number of threads with which `exact` was checked; None: any
        self.steps: Steps = steps or ("spans" if device.type == "cpu" else "device")
        self.on_device = self.steps == "device"
        self.shapes: dict[int, LayerShape] = {}
        self.states: dict[int, StateShape] = {}  # of recurrent layers
        self.heads: frozenset[Heads] = frozenset()  # the distinct attention parameters of all layers
        self.cache: KVCache | None = None
        self._seam = seam
        self._rotary = rotary
        if rotary is not None:
            rotary.allocate(1, device)
        self._runner: StepRunner | None = None
        self.taps: Taps | None = None
        self._features: Tensor | None = None  # of the last pass; a graph replay writes to `_shared` instead
        self._shared: Tensor | None = None  # on a device: features of steps of up to graph_rows rows

    @property
    def facts(self) -> tuple[object, ...]:
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        spec = replace(self.spec, name="", notes=())
        kinds = {layer.kind for layer in tiled_linears(self.network)}
        return (
            *(torch.__version__, torch.get_num_threads(), str(self.device), gpu, self.steps, self.exact, spec),
            *(str(self.dtype), sorted(self.shapes.items()), sorted(map(repr, self.heads)), sorted(kinds)),
            *(self.kernel, *sorted(map(repr, self.states.items()))),
        )

    @property
    def call_facts(self) -> tuple[object, ...]:
        """The number of rows per call in exact mode, the bucket sizes, and whether graphs are captured."""
        buckets = self._runner.buckets.rows if self._runner is not None else ()
        return (ROWS if self.exact else 0, buckets, self.captured)

    def use_threads(self, count: int) -> None:
        """Set torch's number of threads, which all models of the process share."""
        torch.set_num_threads(count)
        self.threads = None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def slot_bytes(self, capacity: int) -> int:
        return cache_bytes(self.shapes, 1, capacity, self.dtype, self.feature_shape, self.states)

    @torch.inference_mode()
    def step(self, batch: Sequence[Rows]) -> Logits:
        """Run all rows in one forward pass. Return logits in host memory for spans, otherwise in device memory."""
        logits = self.forward(batch)
        return logits if self.on_device else logits.numpy()

    def set_exact(self, exact: bool) -> None:
        """Compute products and span attention in calls of ROWS rows if `exact`, otherwise in calls of any size."""
        self.exact = exact
        for layer in tiled_linears(self.network):
            layer.exact = exact

    def tap(self, layers: Sequence[int]) -> None:
        """Record the outputs of these layers, instead of those tapped before, in slots that are allocated afterwards.

        Raise ModelError if the network's layers can't be read.
        """
        taps = Taps(layers)
        attach_taps(self.network, taps)
        self.taps = taps

    @property
    def groups(self) -> int:
        """The largest number of query heads that share a key head."""
        return max((heads.groups for heads in self.heads), default=1)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The number of tapped layers and their width, or an empty tuple if no layer is tapped."""
        return (len(self.taps.layers), self.spec.hidden_size) if self.taps is not None else ()

    @property
    def features(self) -> Tensor:
        """The outputs [rows, layers, hidden] of the tapped layers in the last forward pass, in the model's dtype."""
        assert self._features is not None, "no layer is tapped, or no forward pass has run since"
        return self._features

    def allocate(self, slots: int, capacity: int, graph_rows: int = GRAPH_ROWS) -> None:
        """Allocate `slots` cache slots of at least `capacity` positions and discard the previous cache.

        On a device, steps of up to `graph_rows` rows are padded to buckets.
        """
        self._runner = self.cache = self._shared = None  # free the old cache before allocating
        kind = self.dtype, self.device, self.on_device, self.feature_shape, self.states
        self.cache = KVCache(self.shapes, slots, capacity, *kind)
        if self._rotary is not None:
            self._rotary.allocate(slots + 1, self.device)
        if self.on_device:
            if self.taps is not None:
                self._shared = torch.zeros((graph_rows, *self.feature_shape), dtype=self.dtype, device=self.device)
            tile = tile_positions(self.groups)
            self._runner = StepRunner(self._run_on_device, self.cache, tile, self.device, graph_rows)

    @torch.inference_mode()
    def capture(self, progress: Progress = lambda done, of: None) -> str:
        """Capture the graphs that steps replay on a GPU. Return "", or a clause that says why capturing failed."""
        return self._runner.capture(progress) if self._runner is not None else ""

    @property
    def captured(self) -> bool:
        """Whether steps in buckets replay captured graphs."""
        return self._runner is not None and self._runner.captured

    def rotary_key(self, length: int) -> int:
        return 0 if self._rotary is None else self._rotary.key(length)

    def admit(self, slot: int, length: int, cached: int = 0) -> None:
        assert self.cache is not None
        self.cache.rollback(slot, cached)
        if self._rotary is not None:
            self._rotary.admit(slot, length)

    def keep_for_later(self, slot: int, ids: Sequence[int], exactly: int = 0) -> None:
        """Request that recurrent states be saved at `branching_points` of the prompt `ids` and after `exactly` ids."""
        assert self.cache is not None
        if self.cache.states is not None:
            points = branching_points(ids, self.tokenizer.special_ids)
            self.cache.states.want(slot, [*points, exactly])

    def resumable(self, slot: int, length: int) -> int:
        assert self.cache is not None
        return self.cache.resumable(slot, length)

    def assume(self, slot: int, length: int) -> None:
        assert self.cache is not None
        if self.cache.states is not None:
            self.cache.states.assume(slot, length)
        self.admit(slot, length, length)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Rows], cached: bool = True) -> Tensor:
        """Run all rows in one forward pass, and set each slot's length to the end of the slot's rows.

        Return float32 logits [sum of keep, vocabulary], sequence by sequence. With `cached=False`, the pass only
        determines the shapes of the layers and does not use the cache.
        """
        if self.threads not in (None, torch.get_num_threads()):  # another engine in this process may have changed it
            torch.set_num_threads(self.threads)
        cache = self.cache if cached else None
        runner = self._runner if cached else None
        logits = runner.run(batch) if runner is not None else self._run_spans(batch, cache)
        if cache is not None:
            if self._features is not None:
                count = sum(len(rows.ids) for rows in batch)
                if self._shared is not None and count <= len(self._shared):
                    self._features = self._shared
                self._features = self._features[:count]  # without padding rows
                cache.keep_features(batch, self._features)
            for rows in batch:
                cache.lengths[rows.slot] = rows.end
        return logits

    def rollback(self, slot: int, length: int) -> None:
        assert self.cache is not None
        self.cache.rollback(slot, length)

    def fork(self, source: int, target: int, length: int) -> None:
        assert self.cache is not None
        self.cache.fork(source, target, length)

    def _run_spans(self, batch: Sequence[Rows], cache: KVCache | None) -> Tensor:
        """Run a step over spans; return float32 logits [sum of keep, vocabulary]."""
        spans, ids, positions = list[Span](), list[int](), list[int]()
        for rows in batch:
            spans.append(Span(rows.slot, rows.start, len(ids), len(ids) + len(rows.ids)))
            ids.extend(rows.ids)
            positions.extend(range(rows.start, rows.end))
        context = ForwardContext(spans, cache, self.exact)
        if self.states:
            if cache is not None:
                context.states = cache.states
            else:
                context.states = States(self.states, 1 + max(rows.slot for rows in batch), self.dtype, self.device)
            assert context.states is not None
            context.plans = context.states.plan(batch)
        if self._rotary is not None:
            context.slots = self._tensor([span.slot for span in spans for _ in range(span.rows)])
        kept = list(kept_rows(batch)) or [0]
        logits = self._call(context, self._tensor(ids), self._tensor(positions), self._tensor(kept))
        if context.states is not None:
            context.states.finish(context.plans)
        if not self.shapes:
            self.heads = frozenset(context.heads.values())
            self.shapes = {layer: (h.kv_heads, h.size, h.value_size) for layer, h in context.heads.items()}
        return logits[: sum(rows.keep for rows in batch)].float()

    def _run_on_device(self, rows: DeviceRows, kept: Tensor) -> Tensor:
        """Run a step on the device, eagerly or while a graph records it; return logits [kept, vocabulary]."""
        context = ForwardContext([], self.cache, self.exact, rows)
        context.slots = rows.slots
        logits = self._call(context, rows.ids, rows.positions, kept)
        if self._features is not None and self._shared is not None and len(self._features) <= len(self._shared):
            self._shared[: len(self._features)].copy_(self._features)  # graphs share their memory, so copy out
        return logits

    def _call(self, context: ForwardContext, ids: Tensor, positions: Tensor, kept: Tensor) -> Tensor:
        """Return the network's logits [kept, vocabulary], in the network's dtype, for flat ids and positions [N]."""
        self._seam.context = context
        try:
            logits: Tensor = self.network(
                input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=kept
            ).logits[0]
        finally:
            self._seam.context = None
        assert len(logits) == len(kept), "the model ignores logits_to_keep"
        if self.taps is not None:
            self._features = self.taps.take(self.dtype)
        return logits

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)
