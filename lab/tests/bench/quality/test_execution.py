"""Execution of programs that a model wrote, in real processes under real limits."""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest
from codespec_lab.bench.quality import execution
from codespec_lab.bench.quality.execution import Executor, Limits, TaskTest, demand_limits, is_root, read_tests

from codespec.errors import ConfigError

SMALL = Limits(cpu_seconds=1, memory=1 << 28)
TEST = TaskTest("def check(f):\n    assert f(2) == 4\n", "double")


@pytest.mark.parametrize(
    ("body", "ended"),
    [
        ("    return 2 * x\n", "passed"),
        ("    return x\n", "wrong"),
        ("    return y\n", "error"),
        ("    return ((\n", "error"),
        ("    raise SystemExit(0)\n", "error"),
        ("    import os\n    os._exit(0)\n", "killed"),  # an exit without a report does not count as passed
        ("    while True:\n        pass\n", "timeout"),
        ("    return double(x)\n", "error"),
        ("    return len(b'x' * 2**29) and 2 * x\n", "error"),  # more memory than the limit
        ("    return 4 if input() == '4' else 5\n", "error"),  # standard input is empty
        ("    print('x' * 2**24)\n    return 2 * x\n", "passed"),  # its output is discarded
    ],
)
def test_how_programs_end(body: str, ended: str) -> None:
    assert Executor(SMALL).run(TEST.program("def double(x):\n" + body)) == ended


def passes(program: str) -> bool:
    """Return whether a program's assertions hold."""
    return Executor(SMALL).run(program) == "passed"


def test_a_program_has_a_folder_of_its_own_that_is_gone_behind_it() -> None:
    here = Path.cwd()
    assert passes("import os\nassert os.listdir() == ['program.py']\nopen('left.txt', 'w').write('x')\n")
    assert passes(f"import os\nassert os.getcwd() != {str(here)!r}\nassert os.listdir() == ['program.py']\n")


def test_a_program_knows_nothing_of_its_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    assert passes("import os\nassert 'SECRET' not in os.environ and 'PATH' not in os.environ\n")
    assert passes("import sys\nassert len(sys.argv) == 1 and not [p for p in sys.path if 'site-packages' in p]\n")
    assert not passes("import codespec\n") and not passes("import torch\n")


def test_files_are_small_and_few() -> None:
    small = "with open('f', 'wb') as f:\n    f.write(bytes(1 << {bits}))\n    f.flush()\n"
    assert passes(small.format(bits=19)) and not passes(small.format(bits=22))
    assert not passes("opened = [open('program.py') for _ in range(100)]\n")


def test_limits_cannot_be_raised() -> None:
    program = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))\n"
    if is_root():  # only root may, and not even root outside its own user namespace
        executor = Executor(SMALL)
        assert executor.run(program) == ("error" if executor.networks == {"cut"} else "passed")
    else:
        assert not passes(program)


def test_no_network_where_the_system_lets_us() -> None:
    """A program can't reach a loopback server that this process reaches, or else the report says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address, timeout=10).close()
        executor = Executor(SMALL)
        reached = executor.run(f"import socket\nsocket.create_connection({address!r}, timeout=5)\n")
    assert executor.as_dict()["network"] == ("open" if reached == "passed" else "cut")
    assert len(executor.networks) == 1


def test_nothing_is_left_running(tmp_path: Path) -> None:
    """No child process survives either; if processes are limited, no child can start."""
    note = tmp_path / "pid"
    program = (
        "import os, time\nchild = os.fork()\nif not child:\n    time.sleep(600)\n"
        f"open({str(note)!r}, 'w').write(str(child))\n"
    )
    ended = Executor(SMALL).run(program)
    if is_root():
        assert ended == "passed"
        child = int(note.read_text())
        assert any(not alive(child) or time.sleep(0.05) for _ in range(400))  # a kill takes effect with a delay
    else:
        assert ended == "error" and not note.exists()


def alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


def test_a_program_that_sleeps_is_stopped_by_the_clock() -> None:
    limits = Limits(cpu_seconds=60, wall_seconds=0.5)
    assert Executor(limits).run("import time\ntime.sleep(600)\n") == "timeout"


def test_the_same_program_runs_once(tmp_path: Path) -> None:
    note = tmp_path / "runs"
    executor = Executor(SMALL)
    for _ in range(2):
        assert executor.run(f"open({str(note)!r}, 'a').write('x')\n") == "passed"
    assert note.read_text() == "x"


def test_tests_are_read(tmp_path: Path) -> None:
    row = {"task_id": "T/0", "prompt": "p", "canonical_solution": "s", "test": "t", "entry_point": "f"}
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(json.dumps(row) + "\n\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_tests(plain) == read_tests(packed) == {"T/0": TaskTest("t", "f")}
    assert TaskTest("t", "f").program("s") == "s\nt\ncheck(f)\n"


@pytest.mark.parametrize("line", ["{", "[]", '{"test": "t"}'])
def test_a_line_without_a_test_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"test": "t", "entry_point": "f"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"line 2: --execute needs `test` and `entry_point`.*\.$"):
        read_tests(file)
    with pytest.raises(ConfigError, match="can't be read"):
        read_tests(tmp_path / "none")


def test_a_system_without_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    demand_limits()
    monkeypatch.setattr(execution.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^--execute needs a system that limits processes .*\.$"):
        demand_limits()


def test_the_limits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor(SMALL)
    assert executor.as_dict()["network"] == "open", "not reported before a program has run"
    executor.networks.add("cut")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert executor.as_dict() == {
        "cpu_seconds": 1,
        "wall_seconds": 20.0,
        "memory_bytes": 1 << 28,
        "network": "cut",
        "processes": "none of its own",
    }
    executor.networks.add("open")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert executor.as_dict()["network"] == "open" and "root" in executor.as_dict()["processes"]


def test_the_interpreter_is_this_one() -> None:
    assert passes(f"import sys\nassert sys.version_info[:2] == {sys.version_info[:2]!r} and sys.flags.isolated\n")
