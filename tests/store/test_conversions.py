"""Progress of a conversion: a bar in a terminal, occasional lines in a log, and one sentence for an error."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from codespec.backends.gguf.convert import write_weights
from codespec.errors import ModelError
from codespec.store import conversions
from codespec.store.conversions import Conversion, convert_gguf, hash_once, run_converter
from codespec.store.model_folder import StoredTensor

CONVERSION = Conversion("ab" * 32, "a converter", (), "", failed="It failed", fix="use another", nbytes=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def convert(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, stderr: io.StringIO | None = None) -> None:
    """Run `code` as a converter with a short time limit."""
    monkeypatch.setattr(conversions, "BAR_DELAY_S", 0.0)
    monkeypatch.setattr(conversions, "START", (sys.executable, "-c", code))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr or sys.stderr)
        run_converter(CONVERSION, folder)


def test_a_terminal_gets_a_bar_and_a_log_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('0.2500', 'a note', '0.9999', '1.0000', '1.0000', sep='\\n')"
    for stderr in (Terminal(), io.StringIO()):
        convert(tmp_path, monkeypatch, code, stderr)
        shown = stderr.getvalue()
        assert ("codespec: converting 100%|" in shown) == stderr.isatty() and "a note" not in shown


def test_an_error_begins_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, stderr = "import sys; print('0.4000', flush=True); print('No.', file=sys.stderr); sys.exit(2)", Terminal()
    with pytest.raises(ModelError, match=r"^No\.$"):
        convert(tmp_path, monkeypatch, code, stderr)
    assert "converting  40%|" in stderr.getvalue() and stderr.getvalue().endswith("\n")


def test_what_takes_too_long_is_never_taken_for_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(threading.Timer):
        """Its thread outlives the killed process."""

        def run(self) -> None:
            super().run()
            time.sleep(0.5)

    monkeypatch.setattr(conversions.threading, "Timer", Slow)
    monkeypatch.setattr(conversions, "START_TIMEOUT_S", 0.01)
    with pytest.raises(ModelError, match=r"^It failed within 0 s: use another\.$"):
        convert(tmp_path, monkeypatch, "import time; time.sleep(60)")


def test_a_share_of_one_is_printed_at_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    planned = [StoredTensor(name, "F32", (size,)) for name, size in (("large", 100_000), ("small", 1), ("last", 1))]
    parts = [(tensor.name, memoryview(bytes(4 * tensor.count))) for tensor in planned]
    write_weights(tmp_path / "model.safetensors", planned, parts)
    assert capfd.readouterr().out.split() == ["0.9999", "0.9999", "1.0000"]


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))"
    with pytest.raises(
        ModelError,
        match=rf"because the disk of {tmp_path} is full: free some space, or set XDG_CACHE_HOME to another folder\.$",
    ):
        convert(tmp_path / "part", monkeypatch, code)


def test_links_in_the_cache_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("long")
    monkeypatch.setattr(conversions, "converted_home", lambda: tmp_path / "cache")
    monkeypatch.setattr(conversions, "run_converter", lambda _conversion, part: (part / "new").touch())
    (tmp_path / "cache").mkdir()
    folder = tmp_path / "cache" / CONVERSION.digest
    for link in (folder, folder.with_suffix(".part")):
        link.symlink_to(mine)
    assert conversions.convert_once(CONVERSION) == folder
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"] and not folder.is_symlink()
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_a_pipe_called_like_a_gguf_file_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf can't be used \(not a regular file\): "):
        convert_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        hash_once(tmp_path)
