"""What holds for every test: no downloads, no hypothesis deadline, each skip is told at the end.

Property tests try the same few examples at every run, so that a red run can be had again anywhere. With
RANDOM_EXAMPLES=1 in the environment they try many new ones, as `make test-full` does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from codespec.user_folders import data_folder
from tests.cli.processes import TOKEN

# Before any test module imports transformers: tests make their own models and fetch none.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two test processes share two cores: waiting threads would spin

# What is kept in the user's folders is kept in folders of this run, and neither the user's configuration file nor a
# pulled model is found; processes that tests start inherit it. CODESPEC_MODEL: the same pair on every machine. Large
# runs of pulled models find the user's under this name.
os.environ.setdefault("TEST_PULLED_MODELS", str(data_folder()))
KEPT = tempfile.TemporaryDirectory(prefix="codespec-tests-")
os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = KEPT.name
os.environ["XDG_CONFIG_HOME"], os.environ["XDG_DATA_HOME"] = f"{KEPT.name}/config", f"{KEPT.name}/data"
os.environ["CODESPEC_MODEL"] = "starter"

# Shared cores make single examples slow by chance; that is no property of the code.
MANY = "RANDOM_EXAMPLES" in os.environ
settings.register_profile(
    "house",
    deadline=None,
    derandomize=not MANY,
    max_examples=300 if MANY else 20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file as a user keeps a daemon's token in."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    return file


@pytest.fixture
def state() -> Iterator[Path]:
    """A state home of so short a name that a socket may lie in it."""
    with tempfile.TemporaryDirectory(prefix="cs-") as folder:
        yield Path(folder)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists every skipped test with its reason, one a line; `-rs` would fold them."""
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.section("skipped")
    for line in _reasons(skipped):
        terminalreporter.write_line(line)
    left = len(terminalreporter.stats.get("deselected", []))
    terminalreporter.write_line(f"{len(skipped)} skipped, {left} left out by -m or -k")


def _reasons(skipped: list[pytest.TestReport]) -> Iterator[str]:
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        yield f"{report.nodeid}: {reason.removeprefix('Skipped: ')}"
