"""The sequences that hold a slot of the target's cache: leases, shared prefills, and what a released slot keeps."""

from __future__ import annotations

import time

from codespec.models.language_model import LanguageModel
from codespec.models.slots import SlotPool
from codespec.sequence import Sequence


class Batch:
    """The sequences that run, each in a slot of its own."""

    def __init__(self, target: LanguageModel, slots: int) -> None:
        self.target = target
        self.running: list[Sequence] = []
        self.pool = SlotPool(slots, target.resumable)

    def enter(self, sequence: Sequence) -> None:
        """Assign a slot to a sequence, at its start or after a pause."""
        parent, shared = sequence.parent, len(sequence.prompt_ids) - 1
        lease = self.pool.acquire(sequence.ids, self._rotary_key(sequence), sequence.request.owner)
        source, cached = lease.source, min(lease.shared, len(sequence.ids) - 1)  # the last id yields logits
        cached = self.target.resumable(source, cached)
        if parent is not None and parent in self.running and parent.cached >= shared > cached:
            copied = self.target.resumable(parent.slot, shared)
            source, cached = (parent.slot, copied) if copied > cached else (source, cached)
        sequence.slot, sequence.cached = lease.slot, cached
        self.running.append(sequence)  # before the model calls, so that cleanup works if they fail
        if source != lease.slot and cached:
            self.target.fork(source, lease.slot, cached)
        self.target.admit(lease.slot, sequence.length_limit, cached)
        self.target.keep_for_later(lease.slot, sequence.prompt_ids, shared if sequence.request.n > 1 else 0)
        if not sequence.had_slot:
            sequence.had_slot = True
            sequence.stats.cached_tokens = cached
            sequence.stats.queue_ms = (time.perf_counter() - sequence.started) * 1000

    def leave(self, sequence: Sequence) -> None:
        """Release the slot; its keys and values stay available to requests with the same prefix.

        An audit's slot is emptied, so it is reused before any document's slot.
        """
        self.running.remove(sequence)
        length = 0 if sequence.audit else min(sequence.cached, len(sequence.ids))
        length = self.target.resume(sequence.slot, length)
        self.pool.release(sequence.slot, sequence.ids[:length], self._rotary_key(sequence))

    def _rotary_key(self, sequence: Sequence) -> int:
        return self.target.rotary_key(sequence.length_limit)
