"""The mutation run: which faults exist, that a copy detects them, and the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.daemons import wait_for
from tools import mutants
from tools.mutant_report import as_markdown, summary, write_report
from tools.mutants import ROOMS, judged_faults, near_tests, planted_faults, sampled_faults
from tools.mutations import find_mutants
from tools.tree_copy import Copy, CopyError

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""A text that is none of its concern: 1."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import os
LIMIT: float = 2.5


def f(x: "int" = 0) -> bool:
    # ä < b: offsets are in bytes
    while True:
        break
    if not x and x < LIMIT:
        print(f"{x > 1}")
    return [y for y, _ in zip((x, 7), (), strict=True) if y is not None] != []


@declared(frozen=True)
class C:
    @declared(1)
    def g(self):
        h()
'''
HANGING = """
import subprocess, sys, time
def test_it():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open("child", "w").write(str(child.pid))
    time.sleep(600)
"""
FOUND = [
    (5, "constant", "2.5", "2500.0"),
    (8, "one off", "0", "1"),
    (10, "constant", "True", "False"),
    (12, "negated", "not x and x < LIMIT", "not (not x and x < LIMIT)"),
    (12, "and/or", "and", "or"),
    (12, "comparison", "<", "<="),
    (13, "call dropped", 'print(f"{x > 1}")', "pass"),
    (14, "one off", "7", "8"),
    (14, "negated", "y is not None", "not (y is not None)"),
    (14, "comparison", "is not", "is"),
    (14, "comparison", "!=", "=="),
    (21, "call dropped", "h()", "pass"),
]


def test_each_kind_of_fault_is_found_where_it_stands() -> None:
    source = SOURCE.encode()
    found = find_mutants("a.py", source)
    assert sorted((each.line, each.kind, each.before, each.after) for each in found) == sorted(FOUND)
    for each in found:
        assert each.planted(source) == source[: each.start] + each.after.encode() + source[each.end :] != source
        assert each.compiles(source)


def test_every_planted_fault_stands_in_its_file_and_has_its_tests() -> None:
    faults = planted_faults()
    assert len({fault.key for fault in faults}) == len({fault.name for fault in faults}) == len(faults) >= 17
    for fault in faults:
        assert fault.text != (ROOT / fault.file).read_bytes()
        assert all((ROOT / test).is_file() for tests in fault.tests for test in tests), fault.name
        compile(fault.text, fault.file, "exec")  # else every importer would fail


def test_every_judged_fault_can_be_made_and_has_a_reason() -> None:
    for (file, line, name), why in judged_faults().items():
        found = [(each.line, each.name) for each in find_mutants(file, (ROOT / file).read_bytes())]
        assert (line, name) in found and why


@pytest.mark.parametrize("room", ROOMS)
def test_a_sample_is_the_same_for_the_same_seed(room: str) -> None:
    faults = sampled_faults(room, 5, 1)
    assert [fault.key for fault in faults] == [fault.key for fault in sampled_faults(room, 5, 1)]
    assert len({fault.key for fault in faults}) == 5 and all(fault.file.startswith(ROOMS[room][0]) for fault in faults)


def test_tests_that_name_a_module_go_first() -> None:
    near, rest = near_tests("server", "codespec/server/connections.py")
    assert "tests/server/test_security.py" in near_tests("server", "codespec/server/security.py")[0]
    assert not set(near) & set(rest)
    assert {*near, *rest} == {str(path.relative_to(ROOT)) for path in (ROOT / "tests/server").rglob("test_*.py")}
    assert "tests/lsp/test_buffer.py" in near_tests("lsp", "lsp/codespec_lsp/buffer.py")[0]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Return a copy of a project with one module and a test that runs it in a separate process."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "module.py").write_text("VALUE = 1\n")
    (root / "test_it.py").write_text(
        "import subprocess, sys\n"
        "def test_value():\n"
        "    run = [sys.executable, '-P', '-c', 'import module; raise SystemExit(module.VALUE != 1)']\n"
        "    assert subprocess.run(run, cwd='/').returncode == 0\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    return Copy(root, tmp_path / "copy")


def test_a_copy_runs_its_own_modules_and_nothing_is_left(copy: Copy) -> None:
    failed, seconds = copy.test(["test_it.py"], 120)
    assert failed == "" and set(seconds) == {"test_it.py"}
    with copy.planted("module.py", b"VALUE = 2\n"):
        assert copy.test(["test_it.py"], 120)[0] == "test_it.py::test_value"
    assert copy.test(["test_it.py"], 120)[0] == ""
    assert (copy.folder.parent / "root" / "module.py").read_text() == "VALUE = 1\n"


def test_what_fails_by_chance_has_not_failed(copy: Copy) -> None:
    once = "    place = pathlib.Path('failed-once')\n    there = place.exists()\n    place.touch()\n    assert there\n"
    with copy.planted("test_it.py", f"import pathlib\ndef test_once():\n{once}".encode()):
        assert copy.first_failure(["test_it.py"], 120)[0] == ""
    with copy.planted("test_it.py", b"def test_always():\n    assert False\n"):
        assert copy.first_failure(["test_it.py"], 120)[0] == "test_it.py::test_always"


def has_ended(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_what_can_not_be_imported_and_what_hangs_are_noticed(copy: Copy) -> None:
    with copy.planted("test_it.py", b"import module.nothing\n"):
        assert copy.test(["test_it.py"], 120)[0] == "test_it.py"
    with copy.planted("test_it.py", HANGING.encode()):
        assert copy.test(["test_it.py"], 10)[0] == "its time: more than 10 s"
    number = int((copy.folder / "child").read_text())
    if sys.platform == "linux":
        assert wait_for(lambda: has_ended(number))  # a signal takes effect after a moment


def test_tests_that_are_not_there_are_no_verdict(copy: Copy) -> None:
    with pytest.raises(CopyError, match=r"pytest cannot run test_missing\.py: .*not found"):
        copy.test(["test_missing.py"], 60)


def test_the_table(tmp_path: Path) -> None:
    verdicts = [
        {"room": "planted", "name": "a | b", "file": "f.py", "line": 1, "caught_by": "t", "seconds": 1.0},
        {"room": "server", "name": "c", "file": "f.py", "line": 2, "caught_by": "", "seconds": 1.0},
        {"room": "lsp", "name": "d", "file": "g.py", "line": 3, "caught_by": "t", "seconds": 1.0},
    ]
    assert summary(verdicts)["share"] == 0.5 and summary([])["share"] is None
    file = tmp_path / "docs" / "mutants.json"
    judged = {("f.py", 2, "c"): "it is the same", ("f.py", 3, "c"): "another line"}
    write_report(file, {"seed": 0, "commit": "abc", "date": "today"}, verdicts, judged)
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["rooms"] == {
        name: {"tried": 1, "caught": int(name != "server")} for name in ("planted", "server", "lsp")
    }
    assert [each["name"] for each in found["survivors"]] == ["c"] and found["processor"]
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert "| a \\| b | t |" in page and "| f.py:2 | c | it is the same |" in page
    assert "50% of the sample were caught, 100% of the faults" in page
    found["planted"][0]["gone"] = True
    assert "| a \\| b (code removed) | t |" in as_markdown(found)


def test_what_was_caught_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,) = planted_faults("serve drops the token")
    monkeypatch.setattr(mutants, "KNOWN", tmp_path / "known.jsonl")
    mutants._tell(fault, mutants.Verdict("planted", fault.name, fault.file, 1, "a_test", 1.0))
    (verdict,) = mutants.run([fault], 1, 0)
    assert (verdict.caught_by, verdict.line) == ("a_test", fault.line)


def test_a_table_that_does_not_fit_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "planted.toml"
    entry = '[[fault]]\nname = "x"\nfile = "LICENSE"\nbefore = "not in it"\nafter = ""\ntests = []\n'
    table.write_text(entry, encoding="utf-8")
    monkeypatch.setattr(mutants, "PLANTED", table)
    assert mutants.main(["--sample", "0"]) == 1
    assert os.listdir(tmp_path) == ["planted.toml"]
