"""Output of `make dist`: one version, a reproducible archive, and one sentence if something is missing."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from codespec import __version__
from tools.check_vsix import faults_of
from tools.make_dist import PLUGIN, SUMS, DistError, archive, lay_out, one_version
from tools.pack_server import TARGETS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    folder = tmp_path / "plugin"
    (folder / "lua").mkdir(parents=True)
    (folder / "lua" / "b.lua").write_text("return 1\n")
    (folder / "a.vim").write_text("x\n")
    return folder


def test_editor_and_server_have_one_version(tmp_path: Path) -> None:
    assert one_version(ROOT) == __version__
    for name in ("codespec", "editors/vscode"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "codespec" / "__init__.py").write_text('__version__ = "2.0"\n')
    (tmp_path / "editors" / "vscode" / "package.json").write_text(json.dumps({"version": "1.9"}))
    with pytest.raises(
        DistError, match=r"^dist: codespec is 2\.0 and its extension 1\.9: write one version into both\.$"
    ):
        one_version(tmp_path)


def test_the_plugin_is_one_folder_and_the_same_bytes(plugin: Path) -> None:
    first = archive(plugin, ROOT / "LICENSE", 1_700_000_000)
    os.utime(plugin / "a.vim", (1, 1))
    (plugin / "a.vim").chmod(0o600)
    assert archive(plugin, ROOT / "LICENSE", 1_700_000_000) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        names = [f"{PLUGIN}/LICENSE", f"{PLUGIN}/a.vim", f"{PLUGIN}/lua/b.lua"]
        assert [(entry.name, entry.mode, entry.uid, entry.mtime) for entry in tar] == [
            (name, 0o644, 0, 1_700_000_000) for name in names
        ]


def test_what_is_not_committed_is_not_built(tmp_path: Path) -> None:
    stray = ROOT / ".out" / "stray"
    stray.parent.mkdir(exist_ok=True)
    stray.touch()
    checkout = lay_out(tmp_path)
    assert (checkout / "codespec" / "__init__.py").is_file() and not (checkout / ".out").exists()
    assert not (checkout / ".git").exists()


def test_without_npm_it_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "tools.make_dist"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    message = "dist: building the extension needs npm: install node 20 or newer.\n"
    assert (done.returncode, done.stderr) == (1, message)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm builds the extension")
def test_the_same_commit_gives_the_same_packages_and_they_install(tmp_path: Path) -> None:
    sums = []
    for zone in ("UTC", "Asia/Tokyo"):
        subprocess.run([sys.executable, "-m", "tools.make_dist"], cwd=ROOT, env={**os.environ, "TZ": zone}, check=True)
        sums.append((ROOT / "dist" / SUMS).read_text())
    assert sums[0] == sums[1] and len(sums[0].splitlines()) == 8 + len(TARGETS)
    assert faults_of(ROOT / "dist" / f"codespec-{__version__}.vsix", (ROOT, Path.home())) == []
    whole, sources = f"codespec-{__version__}-py3-none-any.whl", f"codespec-{__version__}.tar.gz"
    kernels, weights = f"codespec_native-{__version__}", f"codespec_weights-{__version__}-py3-none-any.whl"
    (compiled,) = (ROOT / "dist").glob(f"{kernels}-*manylinux*_{platform.machine()}.whl")
    for files in ((whole, compiled.name, weights), (sources,)):
        place = tmp_path / files[0]
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        wheels = [str(ROOT / "dist" / file) for file in files]
        subprocess.run([place / "bin" / "pip", "install", "-q", *wheels], check=True)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run([place / "bin" / "codespec", "--version"], env=clean, capture_output=True, text=True)
        assert done.stdout == f"codespec {__version__}\n"
        if compiled.name in files:  # the starter pair runs on the kernels of the wheel
            words = [place / "bin" / "codespec", "complete", f"{__file__}:1:1", "--local", "--max-tokens", "8"]
            done = subprocess.run(words, env=clean, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0 and done.stdout, done.stderr
