"""Continuous batching: choose the sequences of a step and how many of their pending ids the target processes.

Every decoding sequence takes part in every step. Prompts share the step's budget, so a long prompt stalls other streams
for at most one chunk. The shortest prompt goes first, and a quarter of the budget is reserved for the oldest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection

from codespec.models.language_model import LanguageModel
from codespec.models.slots import SlotPool
from codespec.sequence import Sequence

OLDEST_SHARE = 4  # the oldest prompt gets 1/OLDEST_SHARE of the budget


class Scheduler:
    """Continuous batching over the target's slots. At most `max_batch` sequences take part in a step."""

    def __init__(self, target: LanguageModel, max_batch: int, prefill_chunk: int, slots: int) -> None:
        assert slots >= max_batch
        self.target = target
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.pool = SlotPool(slots)

    @property
    def idle(self) -> bool:
        """Whether no sequence is waiting or running."""
        return not (self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def schedule(self, only: Collection[Sequence] | None = None) -> list[tuple[Sequence, int]]:
        """Return the sequences of this step, each with the number of pending ids to feed.

        Only sequences in `only` may start or continue (None: all). A decoding sequence feeds all its pending ids. A
        warm-up whose prompt is complete is left out.
        """
        self._admit(only)
        feeds = {sequence: sequence.num_wanted for sequence in self.running}
        feeds.update(self._share_budget([sequence for sequence, wanted in feeds.items() if wanted > 1]))
        return [(sequence, feed) for sequence, feed in feeds.items() if feed]

    def pause(self, sequence: Sequence) -> None:
        """Release a running sequence's slot. Its cached tokens are reused later unless the slot is reassigned."""
        self._free(sequence)
        sequence.slot, sequence.cached = -1, 0
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence and free its slot."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self._free(sequence)

    def _free(self, sequence: Sequence) -> None:
        """Release the slot; its keys and values stay available to requests with the same prefix.

        An audit's slot is emptied, so it is reused before any document's slot.
        """
        self.running.remove(sequence)
        length = 0 if sequence.audit else min(sequence.cached, len(sequence.ids))
        self.target.rollback(sequence.slot, length)
        self.pool.release(sequence.slot, sequence.ids[:length], self._rotary_key(sequence))

    def _share_budget(self, readers: list[Sequence]) -> dict[Sequence, int]:
        feeds, left = dict.fromkeys(readers, 0), self.prefill_chunk
        shares = [(reader, self.prefill_chunk // OLDEST_SHARE) for reader in readers[:1]]
        shares += [(reader, left) for reader in sorted(readers, key=lambda reader: reader.num_wanted)]
        for reader, most in shares:
            feed = min(reader.num_wanted - feeds[reader], most, left)
            feeds[reader] += feed
            left -= feed
        return feeds

    def _admit(self, only: Collection[Sequence] | None) -> None:
        for sequence in list(self.waiting):
            if len(self.running) >= self.max_batch:
                break
            if (only is None or sequence in only) and self._may_start(sequence):
                self.waiting.remove(sequence)
                self._start(sequence)

    def _may_start(self, sequence: Sequence) -> bool:
        """Return whether the shared prefill is complete, or no longer available."""
        parent, shared = sequence.parent, len(sequence.prompt_ids) - 1
        return parent is None or bool(parent.finish_reason or parent.num_generated or parent.cached >= shared)

    def _start(self, sequence: Sequence) -> None:
        """Assign a slot to a sequence, at its start or after a pause."""
        parent, shared = sequence.parent, len(sequence.prompt_ids) - 1
        lease = self.pool.acquire(sequence.ids, self._rotary_key(sequence), sequence.request.owner)
        source, cached = lease.source, min(lease.shared, len(sequence.ids) - 1)  # the last id yields logits
        if parent is not None and parent in self.running and parent.cached >= shared > cached:
            source, cached = parent.slot, shared
        sequence.slot, sequence.cached = lease.slot, cached
        self.running.append(sequence)  # before the model calls, so that cleanup works if they fail
        if source != lease.slot and cached:
            self.target.fork(source, lease.slot, cached)
        self.target.admit(lease.slot, sequence.length_limit, cached)
        if not sequence.had_slot:
            sequence.had_slot = True
            sequence.stats.cached_tokens = cached
            sequence.stats.queue_ms = (time.perf_counter() - sequence.started) * 1000

    def _rotary_key(self, sequence: Sequence) -> int:
        return self.target.rotary_key(sequence.length_limit)
