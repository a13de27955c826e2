"""A copy of the checkout in which a fault can be planted and tests run, without a trace in the checkout itself.

Knows git's list of files, a Python environment that prefers the copy's modules, and pytest's exit codes.
"""

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

CONFTEST = "while loading conftest"  # a fault in what all tests share
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
NOTHING_FAILED = (0, 5)  # pytest's; 5: there was nothing to run
CANNOT_RUN = 4  # pytest's: a test that is not there, or what all tests share cannot be imported


class CopyError(Exception):
    """One sentence on what keeps tests from being run: no verdict on a fault."""


class Copy:
    """One copy, with the packages of the Python that runs this."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        for words in (["init", "--quiet"], ["add", "--all", "--force"]):  # some tests ask git for the list, too
            subprocess.run(["git", *words], cwd=folder, check=True)
        self._python = self._make_python()
        self._results = folder.with_suffix(".xml")
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def _make_python(self) -> Path:
        """An environment whose own list of folders begins with the copy's, for every process that a test starts."""
        place = self.folder / ".venv"
        venv.create(place, symlinks=True)
        (packages,) = (place / "lib").glob("python*/site-packages")
        own = [str(self.folder / name) for name in ("", "lsp", "grammars", "lab", "weights")]
        others = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
        (packages / "copy.pth").write_text("\n".join([*own, others]) + "\n", encoding="utf-8")
        return place / "bin" / "python"

    @contextmanager
    def planted(self, file: str, text: bytes) -> Iterator[None]:
        """With another text of a file."""
        path = self.folder / file
        former = path.read_bytes()
        path.write_bytes(text)
        try:
            yield
        finally:
            path.write_bytes(former)

    def first_failure(self, tests: Sequence[str], seconds: float) -> tuple[str, dict[str, float]]:
        """As `test`, and a test has failed only if it fails twice: some fail by chance on a busy machine."""
        by_chance: list[str] = []
        while True:
            failed, durations = self.test([*tests, *by_chance], seconds)
            if "::" not in failed or self.test([failed], seconds)[0]:
                return failed, durations
            by_chance.append(f"--deselect={failed}")

    def test(self, tests: Sequence[str], seconds: float) -> tuple[str, dict[str, float]]:
        """The test that failed first, "" if none did, and how long each file took; what takes longer than `seconds` in
        all has failed too."""
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
        found = FAILED.search(said)  # none where what all tests share can't be imported
        return (found[1] if found else f"exit code {process.returncode}"), {}

    def stop(self) -> None:
        """Ends what runs, and lets nothing more run."""
        self._stopped = True
        if self._process is not None:
            self._end(self._process)

    def _durations(self) -> dict[str, float]:
        """Seconds by file, of the run that has just ended."""
        found: dict[str, float] = defaultdict(float)
        for case in ElementTree.parse(self._results).iter("testcase"):
            found[case.get("classname", "").replace(".", "/") + ".py"] += float(case.get("time", 0))
        return dict(found)

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Ends the process group, and what tests left running beside it: known by the copy's own Python."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        for entry in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
            with suppress(OSError):
                if (entry / "cmdline").read_bytes().startswith(os.fsencode(self._python)):
                    os.kill(int(entry.name), signal.SIGKILL)
