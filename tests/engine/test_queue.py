"""Prefill scheduling: short prompts go first, but never hold up the oldest one."""

from __future__ import annotations

import pytest

from codespec.api.types import CompletionRequest
from codespec.engine.queue import OLDEST_SHARE, Queue, share_rows
from codespec.errors import CodespecError, ServeError
from codespec.sequence import Sequence
from codespec.text.filters import StopFinder
from tests.parrot import Parrot
from tests.toy_tokenizers import toy_tokenizer

CHUNK, LONG, SHORT = 40, 400, 39
MIN_SHARE = 4  # guarantee: the oldest prompt gets a quarter of the rows


def reader(parrot: Parrot, length: int) -> Sequence:
    """Return a sequence with a prompt of this many ids."""
    text = "x" * length
    ids = parrot.tokenizer.encode(text)
    assert len(ids) == length
    return Sequence(CompletionRequest(prefix=text), 0, ids, text.encode(), b"", True, frozenset(), StopFinder())


@pytest.mark.parametrize("company", [1, 3])
def test_a_long_prompt_is_read_beside_any_number_of_short_ones(company: int) -> None:
    """Short prompts arrive in every step and would fill all of them."""
    assert OLDEST_SHARE == MIN_SHARE
    parrot = Parrot(toy_tokenizer("bytes"), "")
    oldest = reader(parrot, LONG)
    running = [oldest]
    steps = 0
    while oldest.cached < LONG - 1:
        steps += 1
        assert steps <= MIN_SHARE * LONG / CHUNK + 1, "it starves"
        running += [reader(parrot, SHORT) for _ in range(company)]
        share_rows(running, CHUNK)
        assert sum(one.feed for one in running if one.num_pending > 1) <= CHUNK
        for one in running:
            one.cached += one.feed
        running = [one for one in running if one is oldest or one.num_pending > 1]
    assert steps > LONG / CHUNK, "the short ones had their share too"


def test_who_puts_gets_a_turn_or_a_refusal() -> None:
    queue, seen, refusal = Queue(), list[CodespecError | None](), ServeError("no")
    assert not queue.wait(0.0)
    queue.put(seen.append)
    assert queue.wait(None)
    queue.call_put()
    queue.put(seen.append)
    queue.close(refusal)
    with pytest.raises(ServeError, match="restart the daemon"):
        queue.put(seen.append)
    assert seen == [None, refusal]


def test_what_raises_in_its_turn_is_refused_with_the_others() -> None:
    queue, seen, refusal = Queue(), list[CodespecError | None](), ServeError("no")

    def broken(error: CodespecError | None) -> None:
        seen.append(error)
        if error is None:
            raise MemoryError

    for function in (seen.append, broken, seen.append):
        queue.put(function)
    with pytest.raises(MemoryError):
        queue.call_put()
    queue.close(refusal)
    assert seen == [None, None, refusal, refusal]
