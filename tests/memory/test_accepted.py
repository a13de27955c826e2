"""The memory as the daemon uses it: whom it serves, what it finds and notices, and that a full disk stops nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from codespec import json_store
from codespec.memory.accepted import Accepted, Memory, texts_store
from codespec.memory.index import MOST_NEW
from codespec.memory.places import MOST_PREFIX, read_places

OWN = "user 1"
LINE = "totals = compute_totals(orders, currency)"


def accepted(text: str = LINE, lead: str = "def run():\n    ", root: str = "/shop", path: str = "") -> Accepted:
    return Accepted(root, path or f"{root}/src/a.py", "python", lead, text, "\nreturn totals\n")


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(1, gather=True)
    made.scopes = frozenset({OWN})
    yield made
    made.close()


def found(memory: Memory, own: bytes, path: str = "/shop/src/b.py", scope: str = OWN) -> bytes:
    """What it says a text goes on with, once all is loaded."""
    for _ in range(400):
        memory.find(scope, path)
        memory.settle()
        index = memory.find(scope, path)
        if index is not None:
            return index.longest(own, 7)[1]
        if not memory._loading:
            break
    return b""


def test_what_was_accepted_is_found_in_all_files_of_its_repository_and_nowhere_else(memory: Memory) -> None:
    memory.accept(accepted()).result()
    wanted = b"te_totals(orders, currency)"
    assert found(memory, b"x=compu") == b""
    assert found(memory, b"totals = compu") == wanted
    assert found(memory, b"totals = compu", "/shop/other.py") == wanted
    for elsewhere in ("/shopping/a.py", "/a.py", "", "a.py"):
        assert found(memory, b"totals = compu", elsewhere) == b""


def test_the_nearest_repository_answers(memory: Memory) -> None:
    memory.accept(accepted("outer_value(1)", "")).result()
    memory.accept(accepted("outer_value(2)", "", "/shop/inner")).result()
    assert found(memory, b"outer_value(", "/shop/inner/a.py") == b"2)"
    assert found(memory, b"outer_value(", "/shop/a.py") == b"1)"


def test_only_the_users_own_scopes_are_served(memory: Memory) -> None:
    memory.accept(accepted()).result()
    for scope in ("", "user 2", "key abc of user 1", "connection 1"):
        assert memory.find(scope, "/shop/a.py") is None and not memory.takes(scope)
    assert memory.takes(OWN)
    assert not Memory(1).takes(""), "nobody's before it is known whose it is"


def test_it_is_loaded_at_the_next_start(memory: Memory) -> None:
    memory.accept(accepted()).result()
    later = Memory(1)
    later.scopes = memory.scopes
    assert later.find(OWN, "/shop/a.py") is None, "it loads, and nobody waits"
    assert found(later, b"totals = compu") != b""
    later.close()


def test_new_texts_are_found_at_once_also_beyond_what_is_kept_unsorted(memory: Memory) -> None:
    memory.accept(accepted()).result()
    found(memory, b"")
    for number in range(60):
        memory.accept(accepted(f"value_{number:03} = {'x' * (MOST_NEW // 40)}{number}", "")).result()
        assert found(memory, f"value_{number:03} = ".encode()).endswith(str(number).encode())
    assert found(memory, b"value_000 = ").endswith(b"0")


def test_off_keeps_and_finds_nothing() -> None:
    on, off = Memory(1), Memory(0)
    on.scopes = off.scopes = frozenset({OWN})
    on.accept(accepted()).result()
    size = texts_store().use()
    off.accept(accepted("another_text(1)")).result()
    assert texts_store().use() == size and read_places([]) == []
    assert off.find(OWN, "/shop/a.py") is None and not off.takes(OWN)
    on.close()
    off.close()


def test_what_is_cleared_is_forgotten_at_once(memory: Memory) -> None:
    memory.accept(accepted()).result()
    memory.accept(accepted(root="/other")).result()
    assert found(memory, b"totals = compu")
    texts_store().clear("/shop")  # by another process
    assert memory.find(OWN, "/shop/a.py") is None
    assert found(memory, b"totals = compu") == b""
    memory.accept(accepted("other_value = 1", "")).result()
    assert found(memory, b"totals = compu") == b"", "nothing of it comes back with the next text"
    assert found(memory, b"other_value") == b" = 1"
    assert found(memory, b"totals = compu", "/other/a.py")


def test_what_another_process_keeps_is_found(memory: Memory) -> None:
    memory.accept(accepted()).result()
    found(memory, b"")
    time.sleep(0.01)
    texts_store(1).add("/shop", "from_elsewhere(1)", [])
    assert found(memory, b"from_elsewhere(") == b"1)"


def test_a_full_disk_is_said_once_and_stops_nothing(memory: Memory) -> None:
    with mock.patch.object(json_store.json, "dump", side_effect=OSError(28, "No space left on device")):
        for number in range(3):
            memory.accept(accepted(f"value_{number} = 1")).result()
    (note,) = memory.notes
    assert "can't be kept in" in note and "No space left on device" in note and "memory_mb = 0" in note
    memory.accept(accepted()).result()
    assert found(memory, b"totals = compu") != b"" and memory.kept == 1
    assert not [name for name in os.listdir(texts_store().folder) if name.endswith(".part")]


def test_trifles_are_not_remembered(memory: Memory) -> None:
    memory.gathers = False
    for text in ("", ")", "\n    ", "x\n"):
        memory.accept(accepted(text)).result()
    assert texts_store().use().repositories == 0 and memory.kept == 0


def test_places_are_read_back(memory: Memory) -> None:
    memory.accept(accepted(lead="x" * 5000 + "\n", text="y = 1")).result()
    (place,) = read_places([])
    assert (place.root, place.path, place.language, place.text) == ("/shop", "src/a.py", "python", "y = 1")
    assert len(place.prefix) == MOST_PREFIX and place.prefix.endswith("x\n") and place.suffix == "\nreturn totals\n"


def test_places_are_not_gathered_unless_wanted(state: Path) -> None:
    memory = Memory(1)
    memory.accept(accepted()).result()
    memory.close()
    assert read_places([]) == [] and not (state / "places").exists() and (state / "memory").exists()
