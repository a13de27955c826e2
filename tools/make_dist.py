"""`make dist`: build HEAD as packages in dist/.

These are the wheels of codespec, its kernels (one for each system, compiled by zig), its weights, its laboratory and
its plugins, the sdist, the VS Code extension with those that it needs inside, the Neovim plugin as an archive, and
their checksums. The build uses a separate export of HEAD, so uncommitted files cannot get in. Times are the commit's,
so the same commit gives the same bytes. Publishes nothing (see docs/releasing.md).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tools.check_vsix import faults_of
from tools.pack_server import TARGETS, PackError, build

ROOT = Path(__file__).resolve().parent.parent
SUMS = "SHA256SUMS"
PLUGIN = "codespec.nvim"  # top folder of its archive
NOT_RUN = re.compile(r"-(macosx|win)_")  # `make test-native` runs arm64 in emulation
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


class DistError(Exception):
    """Raised with one sentence if the build fails."""


def make_dist(folder: Path) -> list[Path]:
    """Build all packages of HEAD into the folder, which is emptied first, and return the files.

    Raises DistError and PackError.
    """
    if shutil.which("npm") is None:
        raise DistError("dist: building the extension needs npm: install node 20 or newer.")
    epoch = _logged("git", "log", "-1", "--format=%ct")
    os.environ |= {"SOURCE_DATE_EPOCH": epoch, "TZ": "UTC"}  # hatchling and vsce take file times from these
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="codespec-dist-") as place:
        checkout = lay_out(Path(place))
        version = one_version(checkout)
        build(checkout, folder, "wheel", "sdist")
        build(checkout, folder, "wheel", packages=("weights", "lab", "plugins/scale", "plugins/upstream"))
        build(checkout, folder, "wheel", packages=("native",), targets=TARGETS)
        os.environ["CODESPEC_KERNELS"] = str(folder.absolute())  # for the extension's `npm run package`
        extension = checkout / "editors" / "vscode"
        _run(extension, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
        _run(extension, "npm", "run", "--silent", "package")
        if faults := faults_of(extension / "codespec.vsix", (Path(place), ROOT, Path.home())):
            raise DistError(
                f"dist: the extension can't be released, since {faults[0]}: correct its packaging in editors/vscode."
            )
        shutil.copy(extension / "codespec.vsix", folder / f"codespec-{version}.vsix")
        plugin = archive(checkout / "editors" / "nvim", checkout / "LICENSE", int(epoch))
        (folder / f"{PLUGIN}-{version}.tar.gz").write_bytes(plugin)
    files = sorted(file for file in folder.iterdir() if file.name.startswith("codespec"))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    return files


def lay_out(place: Path) -> Path:
    """Export HEAD's files to a new folder below `place`."""
    checkout = place / "codespec"
    checkout.mkdir()
    listing = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, check=False, capture_output=True)
    if listing.returncode:
        raise DistError("dist: git can't read HEAD here: build from a clone with at least one commit.")
    with tarfile.open(fileobj=io.BytesIO(listing.stdout)) as tar:
        tar.extractall(checkout, filter="data")
    return checkout


def one_version(checkout: Path) -> str:
    """Return the version of codespec/__init__.py. Raises DistError if the extension's differs."""
    found = VERSION.search((checkout / "codespec" / "__init__.py").read_text(encoding="utf-8"))
    version = found[1] if found else ""
    manifest = json.loads((checkout / "editors" / "vscode" / "package.json").read_text(encoding="utf-8"))
    if manifest["version"] != version:
        raise DistError(
            f"dist: codespec is {version} and its extension {manifest['version']}: write one version into both."
        )
    return version


def archive(plugin: Path, licence: Path, epoch: int) -> bytes:
    """Return a folder as a tar.gz with one top folder, sorted by name, without a user name and with one time."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch, filename="") as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        files = {str(file.relative_to(plugin)): file for file in plugin.rglob("*") if file.is_file()}
        for name, file in sorted({**files, "LICENSE": licence}.items()):
            entry = tarfile.TarInfo(f"{PLUGIN}/{name}")
            entry.size, entry.mtime, entry.mode = file.stat().st_size, epoch, 0o644
            with file.open("rb") as data:
                tar.addfile(entry, data)
    return packed.getvalue()


def _logged(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise DistError("dist: git can't read HEAD here: build from a clone with at least one commit.")
    return done.stdout.strip()


def _run(folder: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    if subprocess.run(command, cwd=folder, check=False, env=environment).returncode:
        raise DistError(
            f"dist: `{' '.join(command[:3])}` failed (its message is above): fix the cause and run this again."
        )


def main() -> int:
    """Return exit code 0 if everything is in dist/, else 1 after printing one sentence."""
    try:
        files = make_dist(ROOT / "dist")
    except (DistError, PackError) as error:
        print(error, file=sys.stderr)
        return 1
    for file in files:
        note = "  (compiled, never run here)" if NOT_RUN.search(file.name) else ""
        print(f"{file.stat().st_size / 1e6:7.2f} MB  dist/{file.name}{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
