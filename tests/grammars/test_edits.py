"""A tracker that followed a text says what a fresh one says, never raises, and keeps no more the longer it follows."""

from __future__ import annotations

import inspect
import resource
import typing

import pytest
from codespec_grammars import ContextTracker

from tests.grammars.edits import random_edits
from tests.grammars.fixtures import fixture_files, read_source
from tests.grammars.test_contexts import CORE


def source_of(language: str) -> bytes:
    """Some hundred lines: the language's fixtures, several times over; Python's own library for Python."""
    if language == "python":
        return inspect.getsource(inspect).encode() + inspect.getsource(typing).encode()
    return b"\n".join(read_source(path).encode() for path in fixture_files(language)) * 6


def check(language: str, count: int, seed: int) -> None:
    for edited in random_edits(language, source_of(language), count, seed):
        followed, fresh = edited.tracker.context(), edited.fresh(language).context()
        assert followed == fresh, (language, len(edited.prefix), edited.data, bool(edited.suffix))


@pytest.mark.parametrize("language", CORE)
def test_a_followed_text_equals_a_fresh_one(language: str) -> None:
    check(language, 100, seed=0)


@pytest.mark.full
@pytest.mark.parametrize("language", CORE)
def test_a_thousand_edits(language: str) -> None:
    check(language, 1000, seed=1)


def test_asking_seldom_gives_the_same_as_asking_always() -> None:
    for edited in random_edits("python", source_of("python"), 60, seed=2):
        if len(edited.data) % 5 == 0:
            assert edited.tracker.context() == edited.fresh("python").context()


def churn(tracker: ContextTracker, rounds: int) -> None:
    for number in range(rounds):
        tracker.advance(b"value_%d = call(a, [1,\n    2])\n" % number)
        tracker.context()
        tracker.rollback(0 if number % 3 else tracker.appended)
    tracker.rollback(0)


@pytest.mark.full
def test_memory_stays_flat() -> None:
    tracker = ContextTracker("python", source_of("python"))
    churn(tracker, 300)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    churn(tracker, 3000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024
