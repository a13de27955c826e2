"""How many tokens a request may have, prompt and completion together, where the settings do not say: as many as the
model takes, within a share of the memory. Knows sizes and how much memory there is; loads nothing.

The drafter has no part in it, nor what is free at the moment: with speculation and without, today and tomorrow, a
document's prompt is the same.
"""

from __future__ import annotations

from codespec.catalogue import room as machine

USUAL_CONTEXT = 2048  # tokens that are had at least, where the model takes them
ROUND = 512  # tokens in whose multiples a context is chosen, as caches are made
SHARE = 16  # a part in so many of the machine's memory, for the keys and values of what runs at once
CACHE_SHARE = 4  # a part in so many of cache_mb: the rest is for idle documents


def choose_context(asked: int, longest: int, token_bytes: int, batch: int, room: int) -> int:
    """Tokens of each of `batch` requests whose keys and values take `token_bytes` each: what is asked for, else what
    fits into `room` bytes, but no less than usual; never more than the model takes.
    """
    if asked:
        return min(longest, asked)
    fitting = room // (batch * max(1, token_bytes))
    return min(longest, max(USUAL_CONTEXT, fitting - fitting % ROUND))


def context_room(cache_mb: int, memory: int) -> int:
    """Bytes for the keys and values of what runs at once: a share of what is given, else of this memory."""
    return cache_mb * 2**20 // CACHE_SHARE if cache_mb else memory // SHARE


def machine_memory() -> int:
    """Bytes of memory that this machine has, or this container may take; 0 where the system does not tell."""
    return machine.machine_memory() or 0
