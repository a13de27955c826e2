"""Progress of a conversion: a bar in a terminal, occasional lines in a log, and one sentence for an error."""

from __future__ import annotations

import io
import sys
import threading
import time
from pathlib import Path

import pytest

from codespec.backends.gguf.convert import write_weights
from codespec.errors import ModelError
from codespec.store import conversion_cache
from codespec.store.conversion_cache import Conversion, run_converter
from codespec.store.weights import StoredTensor

CONVERSION = Conversion("ab" * 32, "a converter", (), "", "", failed="It failed", fix="use another", nbytes=1)
FULL = "codespec: converting [########################] 100.0%"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[Terminal, io.StringIO], ids=["terminal", "log"])
def stderr(request: pytest.FixtureRequest) -> io.StringIO:
    stream: io.StringIO = request.param()
    return stream


def convert(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, stderr: io.StringIO | None = None) -> None:
    """Run `code` as a converter with a short time limit."""
    monkeypatch.setattr(conversion_cache, "PATIENCE", 0.0)
    monkeypatch.setattr(conversion_cache, "START", (sys.executable, "-c", code))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr or sys.stderr)
        run_converter(CONVERSION, folder)


def test_the_end_is_shown_once(stderr: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('0.2500', 'a note', '0.9999', '1.0000', '1.0000', '1.0000', sep='\\n')"
    convert(tmp_path, monkeypatch, code, stderr)
    lines = stderr.getvalue().replace("\r", "\n").split("\n")
    assert [line.rstrip() for line in lines if "100.0%" in line] == [FULL]
    assert lines[-1] == "" and "a note" not in stderr.getvalue()
    assert stderr.isatty() or not any(line.endswith(" ") for line in lines)


def test_an_error_begins_a_line(stderr: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; print('0.4000', flush=True); print('No.', file=sys.stderr); sys.exit(2)"
    with pytest.raises(ModelError, match=r"^No\.$"):
        convert(tmp_path, monkeypatch, code, stderr)
    assert stderr.getvalue().count("40.0%") == 1 and stderr.getvalue().endswith("\n")


def test_what_takes_too_long_is_never_taken_for_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(threading.Timer):
        """Its thread outlives the killed process."""

        def run(self) -> None:
            super().run()
            time.sleep(0.5)

    monkeypatch.setattr(conversion_cache.threading, "Timer", Slow)
    monkeypatch.setattr(conversion_cache, "STARTUP", 0.01)
    with pytest.raises(ModelError, match=r"^It failed \(it took longer than 0 s\): use another\.$"):
        convert(tmp_path, monkeypatch, "import time; time.sleep(60)")


def test_a_share_of_one_is_printed_at_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    planned = [StoredTensor(name, "F32", (size,)) for name, size in (("large", 100_000), ("small", 1), ("last", 1))]
    parts = [(tensor.name, memoryview(bytes(4 * tensor.count))) for tensor in planned]
    write_weights(tmp_path / "model.safetensors", planned, parts)
    assert capfd.readouterr().out.split() == ["0.9999", "0.9999", "1.0000"]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))"
    with pytest.raises(ModelError, match=rf"because {tmp_path} is full: free some, or set XDG_CACHE_HOME\.$"):
        convert(tmp_path / "part", monkeypatch, code)


def test_links_in_the_cache_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("long")
    monkeypatch.setattr(conversion_cache, "converted_home", lambda: tmp_path / "cache")
    monkeypatch.setattr(conversion_cache, "run_converter", lambda _conversion, part: (part / "new").touch())
    (tmp_path / "cache").mkdir()
    folder = tmp_path / "cache" / CONVERSION.digest
    for link in (folder, folder.with_suffix(".part")):
        link.symlink_to(mine)
    assert conversion_cache.convert_once(CONVERSION) == folder
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"] and not folder.is_symlink()
    assert [path.name for path in folder.iterdir()] == ["new"]
