"""Entries by repository on disk: modes, bounds, order, corrupt files, two writers, what is cleared."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from codespec.errors import ConfigError
from codespec.memory.store import SHARE, Store, key_of

MOST = 40_000
WRITER = """
import sys
from codespec.memory.store import Store
for number in range(40):
    Store("memory", 1 << 20).add("/work", f"{sys.argv[1]} {number}", [])
"""


@pytest.fixture
def store() -> Store:
    return Store("memory", MOST)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_entries_come_back_in_order_and_an_entry_that_comes_again_is_the_newest(store: Store) -> None:
    for entry in ("one", "two", "three", "one"):
        store.add("/work", entry, [])
    notes: list[str] = []
    kept = store.read(key_of("/work"), notes)
    assert (kept.root, kept.entries, notes) == ("/work", ["two", "three", "one"], [])
    assert kept.nbytes == store.use().nbytes and store.use().repositories == 1


def test_only_the_user_can_read_it(store: Store, state: Path) -> None:
    state.mkdir(mode=0o700)
    store.folder.mkdir(mode=0o755)  # as an older version, or somebody's script, may have left it
    store.add("/work", "text", [])
    assert mode(store.folder) == 0o700
    assert {mode(file) for file in store.folder.iterdir()} == {0o600}


def test_a_state_folder_that_others_write_to_is_refused(store: Store, state: Path) -> None:
    state.mkdir()
    state.chmod(0o777)
    with pytest.raises(ConfigError, match="Other users can write to"):
        store.add("/work", "text", [])
    assert not store.folder.exists()


def test_a_repository_has_a_bound_and_its_oldest_entries_go_first(store: Store) -> None:
    dropped = [store.add("/work", f"{number:04} " + 95 * "x", []) for number in range(300)]
    kept = store.read(key_of("/work"), [])
    numbers = [int(entry[:4]) for entry in kept.entries]
    assert numbers == list(range(numbers[0], 300)) and numbers[0] > 0
    assert MOST / SHARE / 2 < kept.nbytes < MOST / SHARE + 200
    assert not dropped[0] and any(dropped) and sum(dropped) < 60, "a drop makes room for many"


def test_an_entry_longer_than_the_bound_is_not_kept(store: Store) -> None:
    store.add("/work", MOST * "x", [])
    assert store.read(key_of("/work"), []).entries == []


def test_all_repositories_have_a_bound_and_the_one_used_longest_ago_goes_first(store: Store) -> None:
    for root in range(9):
        for number in range(60):
            store.add(f"/work{root}", f"{number} " + 140 * "x", [])
    roots = {kept.root for kept in store.read_all([])}
    assert "/work8" in roots and "/work0" not in roots
    assert store.use().nbytes <= MOST


def test_a_corrupt_file_is_set_aside_and_said_once(store: Store) -> None:
    store.add("/work", "text", [])
    (file,) = store.folder.glob("*.json")
    file.write_text("{")
    notes: list[str] = []
    assert store.read(key_of("/work"), notes).entries == []
    store.add("/work", "new", notes)
    assert len(notes) == 1 and "set aside" in notes[0]
    assert store.read(key_of("/work"), notes).entries == ["new"] and len(notes) == 1


@pytest.mark.parametrize("content", [{"root": 1, "entries": []}, {"root": "/work"}, {"root": "/work", "entries": "x"}])
def test_a_file_of_other_content_is_set_aside(store: Store, content: dict[str, object]) -> None:
    store.folder.mkdir(parents=True, mode=0o700)
    (store.folder / f"{key_of('/work')}.json").write_text(json.dumps({"format": 1, "content": content}))
    notes: list[str] = []
    assert store.read(key_of("/work"), notes).entries == [] and len(notes) == 1


def test_two_processes_lose_nothing_of_each_other(store: Store) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    entries = store.read(key_of("/work"), []).entries
    assert sorted(entries) == sorted(f"{name} {number}" for name in "ab" for number in range(40))


def test_clearing_deletes_one_repository_or_all_also_what_was_set_aside(store: Store) -> None:
    for root in ("/one", "/two", "/three"):
        store.add(root, "secret words", [])
    (store.folder / f"{key_of('/one')}.json").write_text("secret words")
    store.read(key_of("/one"), [])
    (store.folder / f"{key_of('/two')}abc.part").write_text("secret words")  # of a write that was cut off
    assert store.clear("/two") == 1
    assert {kept.root for kept in store.read_all([])} == {"/three"}
    assert store.clear("/two") == 0
    assert store.clear() == 1
    assert [file.name for file in store.folder.iterdir()] == ["lock"]
