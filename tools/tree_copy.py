"""Copy of the checkout in which a fault can be planted and tests run, without a trace in the checkout itself."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from xml.etree import ElementTree

CONFTEST = "while loading conftest"  # pytest's message for a fault in shared test code
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
NOTHING_FAILED = (0, 5)  # exit codes of pytest; 5: no tests
CANNOT_RUN = 4  # exit code of pytest: a missing test, or shared test code cannot be imported


class CopyError(Exception):
    """Raised with one sentence if tests cannot be run, so there is no verdict on a fault."""


class Copy:
    """One copy, with the packages of the Python that runs this."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        for words in (["init", "--quiet"], ["add", "--all", "--force"]):  # some tests also use git's file list
            subprocess.run(["git", *words], cwd=folder, check=True)
        self._python = self._make_python()
        self._results = folder.with_suffix(".xml")
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def _make_python(self) -> Path:
        """Create an environment whose path starts with the copy's folders, for every process that a test starts."""
        place = self.folder / ".venv"
        venv.create(place, symlinks=True)
        (packages,) = (place / "lib").glob("python*/site-packages")
        own = [str(self.folder / name) for name in ("", "lsp", "grammars", "lab", "weights")]
        others = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
        (packages / "copy.pth").write_text("\n".join([*own, others]) + "\n", encoding="utf-8")
        return place / "bin" / "python"

    @contextmanager
    def planted(self, file: str, text: bytes) -> Iterator[None]:
        """Replace a file's text within the block."""
        path = self.folder / file
        former = path.read_bytes()
        path.write_bytes(text)
        try:
            yield
        finally:
            path.write_bytes(former)

    def first_failure(self, tests: Sequence[str], seconds: float) -> tuple[str, dict[str, float]]:
        """Return the result of `test`, ignoring failures that do not repeat: some fail by chance on a busy machine."""
        by_chance: list[str] = []
        while True:
            failed, durations = self.test([*tests, *by_chance], seconds)
            if "::" not in failed or self.test([failed], seconds)[0]:
                return failed, durations
            by_chance.append(f"--deselect={failed}")

    def test(self, tests: Sequence[str], seconds: float) -> tuple[str, dict[str, float]]:
        """Return the first failed test, or "" if none failed, and the duration of each file.

        Exceeding `seconds` in total counts as a failure too.
        """
        if self._stopped:
            return "an interruption", {}
        words = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-m", "not full", f"--junitxml={self._results}"]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        environment.pop("PYTHONPATH", None)
        process = self._process = subprocess.Popen(
            [str(self._python), "-m", "pytest", *words, *tests],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with process:
            try:
                said, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return f"its time: more than {seconds:.0f} s", {}
            finally:
                self._end(process)
        if process.returncode in NOTHING_FAILED:
            return "", self._durations()
        if process.returncode == CANNOT_RUN and CONFTEST not in said:
            raise CopyError(f"pytest cannot run {' '.join(tests)}: {said.strip().splitlines()[-1]}")
        found = FAILED.search(said)  # no match if shared test code cannot be imported
        return (found[1] if found else f"exit code {process.returncode}"), {}

    def stop(self) -> None:
        """Kill the running tests and prevent further runs."""
        self._stopped = True
        if self._process is not None:
            self._end(self._process)

    def _durations(self) -> dict[str, float]:
        """Return the seconds by file of the last run."""
        found: dict[str, float] = defaultdict(float)
        for case in ElementTree.parse(self._results).iter("testcase"):
            found[case.get("classname", "").replace(".", "/") + ".py"] += float(case.get("time", 0))
        return dict(found)

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Kill the process group and leftover processes of tests, recognized by the copy's own Python."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        for entry in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
            with suppress(OSError):
                if (entry / "cmdline").read_bytes().startswith(os.fsencode(self._python)):
                    os.kill(int(entry.name), signal.SIGKILL)
