"""A GGUF file is converted once, by one process; a failure is one sentence in the requesting process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from codespec.backends.loader import load_model
from codespec.errors import ModelError
from codespec.pair import describe, read_facts
from codespec.store import conversions
from codespec.store.conversions import Conversion, convert_gguf, converted_home, source_quantization
from codespec.store.resolve import resolve
from tests.backends.gguf.files import write_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return converted_home()


@pytest.fixture
def message(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that the user sees."""
    lines: list[str] = []
    monkeypatch.setattr(conversions, "say", lines.append)
    return lines


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Record the files that the converter was started for."""
    started: list[Path] = []
    run = conversions.run_converter

    def counted(conversion: Conversion, folder: Path) -> None:
        started.append(Path(conversion.sources[0]))
        run(conversion, folder)

    monkeypatch.setattr(conversions, "run_converter", counted)
    yield started


def settle(file: Path) -> None:
    """Make a file's timestamps old enough for the index."""
    then = time.time_ns() - 60_000_000_000
    os.utime(file, ns=(then, then))


def test_a_file_is_a_model_everywhere_a_name_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = write_model(tmp_path / "m.gguf", form="Q8_0")
    facts = read_facts(resolve(str(file)))
    assert " parameters in Q8_0, " in describe("target", facts).message
    for dtype in ("native", "float32"):
        model = load_model(str(file), dtype=dtype, exact=False)
        assert model.spec.name == str(file) and model.tokenizer.model_eos_ids == {0}
        assert capfd.readouterr().err == ("" if dtype == "native" else "codespec: converting m.gguf (once)\n")


def test_it_is_converted_once_and_found_by_its_bytes(tmp_path: Path, runs: list[Path], message: list[str]) -> None:
    file = write_model(tmp_path / "m.gguf")
    folder = convert_gguf(file)
    assert message == ["converting m.gguf (once)"] and folder.parent == converted_home()
    assert convert_gguf(file) == folder
    assert (
        convert_gguf(file.rename(tmp_path / "moved.GGUF")) == folder == resolve(str(tmp_path / "moved.GGUF")).folder()
    )
    write_model(file, form="Q8_0")
    assert convert_gguf(file) != folder
    assert len(runs) == len(message) == 2
    assert sorted(path.name for path in converted_home().iterdir() if path.is_dir()) == sorted(
        {folder.name, convert_gguf(file).name}
    )


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = write_model(tmp_path / "m.gguf"), []
    settle(file)
    digest = conversions.hashlib.file_digest
    monkeypatch.setattr(
        conversions.hashlib, "file_digest", lambda stream, name: read.append(name) or digest(stream, name)
    )
    folder = convert_gguf(file)
    assert convert_gguf(file) == folder and len(read) == 1
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert convert_gguf(file) != folder and len(read) == 2


def test_a_file_written_just_now_is_not_trusted_by_its_time(tmp_path: Path, home: Path) -> None:
    file = write_model(tmp_path / "m.gguf")
    convert_gguf(file)
    assert not (home / "index.json").exists()


def test_what_takes_too_long_is_given_up(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "START_TIMEOUT_S", 0.001)
    monkeypatch.setattr(conversions, "MIN_BYTES_PER_S", 1e12)
    with pytest.raises(ModelError, match=r"could not be converted within 0 s: use a folder of the model"):
        convert_gguf(write_model(tmp_path / "m.gguf"))
    assert not [path for path in home.iterdir() if path.is_dir()]


def test_a_broken_index_is_no_index(tmp_path: Path, home: Path) -> None:
    file = write_model(tmp_path / "m.gguf")
    settle(file)
    folder, state, place = convert_gguf(file), file.stat(), str(file)
    lists = [
        [1, 2, "../../x"],
        [state.st_size, state.st_mtime_ns, 7],
        [state.st_size, state.st_mtime_ns, "../" * 21 + "x"],
    ]
    contents = (json.dumps({"format": 1, "content": {place: one}}) for one in lists)
    for text in ("", "[]", "[" * 100_000, '{"x": 1}', *contents):
        (home / "index.json").write_text(text)
        assert convert_gguf(file) == folder
        assert json.loads((home / "index.json").read_text())["content"][place][2] == folder.name


def test_an_index_that_can_not_be_written_stops_nothing(tmp_path: Path, home: Path) -> None:
    file = write_model(tmp_path / "m.gguf")
    settle(file)
    (home / "index.json").mkdir(parents=True)
    (home / "index.json.corrupt" / "kept").mkdir(parents=True)  # nor can it be set aside
    folder = convert_gguf(file)
    assert convert_gguf(file) == folder and folder.is_dir()
    assert not list(home.glob("index.*.part"))


def test_a_folder_of_an_older_format_or_half_of_one_is_made_again(tmp_path: Path, runs: list[Path]) -> None:
    file = write_model(tmp_path / "m.gguf")
    folder = convert_gguf(file)
    config = json.loads((folder / "config.json").read_text())
    config[conversions.SOURCE]["format"] = 0
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "left.over").touch()
    part = folder.with_suffix(".part")
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"half")
    assert convert_gguf(file) == folder and len(runs) == 2
    assert not (folder / "left.over").exists() and not part.exists()
    assert source_quantization(json.loads((folder / "config.json").read_text())) == "F32"


def test_what_stands_against_it_is_one_sentence(tmp_path: Path, home: Path, message: list[str]) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(write_model(tmp_path / "whole.gguf").read_bytes()[:-5000])
    for _ in range(2):
        with pytest.raises(
            ModelError, match=rf"^{file} is truncated or corrupt \(it ends within .*\): download or export"
        ):
            convert_gguf(file)
    assert [path for path in home.iterdir() if path.is_dir()] == []


def test_a_converter_that_is_killed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    file = write_model(tmp_path / "m.gguf")
    killed = (sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    monkeypatch.setattr(conversions, "START", killed)
    with pytest.raises(ModelError, match=r"could not be converted \(signal 9\): free some memory"):
        convert_gguf(file)
    assert [path for path in home.iterdir() if path.is_dir()] == []
    monkeypatch.setattr(conversions, "START", (sys.executable, "-c", "raise RuntimeError('no')"))
    with pytest.raises(ModelError, match=r"could not be converted \(RuntimeError: no\)"):
        convert_gguf(file)


def test_a_folder_called_like_a_package_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The converter runs in the user's current folder, which may contain anything."""
    (tmp_path / "gguf.py").write_text("raise SystemExit(9)")
    (tmp_path / "codespec").mkdir()
    monkeypatch.chdir(tmp_path)
    assert convert_gguf(write_model(tmp_path / "m.gguf")).is_dir()


def test_a_second_process_waits_for_the_first(tmp_path: Path, home: Path) -> None:
    """It reports that it waits, and then uses the first one's result."""
    file = write_model(tmp_path / "m.gguf")
    first = convert_gguf(file)
    away = first.rename(tmp_path / "away")
    with FileLock(first.with_suffix(".lock")):
        code = "import sys; from codespec.store.conversions import *; print(convert_gguf(Path(sys.argv[1])))"
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stderr is not None
        assert other.stderr.readline() == "codespec: another process is converting this model: waiting for it\n"
        away.rename(first)
    out, errors = other.communicate()
    assert (out, errors, other.returncode) == (f"{first}\n", "", 0)


def test_two_processes_at_once_convert_it_once(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf")
    code = "import sys; from codespec.store.conversions import *; print(convert_gguf(Path(sys.argv[1])))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ends = [process.communicate() for process in both]
    assert ends[0][0] == ends[1][0] != ""
    assert sum(errors.count("converting m.gguf") for _, errors in ends) == 1


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf can't be used \(No such file or directory\): check the path"):
        convert_gguf(tmp_path / "none.gguf")
    file = write_model(tmp_path / "m.gguf")
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    with pytest.raises(ModelError, match=r"can't be used \(Not a directory\)"):
        convert_gguf(file)
