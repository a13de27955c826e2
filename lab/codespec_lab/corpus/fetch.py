"""Download the packages of a list with each registry's own client (pip, npm, apt) and unpack them.

Runs no code of the packages. Licences and files are checked later.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codespec.errors import TrainingError

STARTER_LIST = Path(__file__).with_name("packages.toml")
REGISTRIES = ("pypi", "npm", "debian", "debian_dev")
_APT = Path("/etc/apt/sources.list.d")


@dataclass(frozen=True, slots=True)
class PackageList:
    """Package names by registry, to train on or to hold out; `max_chars` limits the characters by language."""

    train: Mapping[str, tuple[str, ...]]
    held_out: Mapping[str, tuple[str, ...]]
    max_chars: Mapping[str, float]

    def names(self, registry: str) -> tuple[str, ...]:
        """Return all names of a registry."""
        return (*self.train[registry], *self.held_out[registry])


def read_package_list(path: Path) -> PackageList:
    """Read a list in TOML. Raises TrainingError if it is missing, not TOML, or names a package on both sides."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        max_chars = {str(name): 1e6 * float(size) for name, size in raw.get("megabytes", {}).items()}
        train, held_out = (
            {registry: tuple(map(str, raw.get(registry, {}).get(side, ()))) for registry in REGISTRIES}
            for side in ("train", "held_out")
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise TrainingError(
            f"The package list {path} cannot be read ({error}); see the starter pair's packages.toml."
        ) from error
    for registry in REGISTRIES:
        if both := sorted(set(train[registry]) & set(held_out[registry])):
            raise TrainingError(f"{path}: {', '.join(both)} must not be both trained on and held out; remove one.")
    return PackageList(train, held_out, max_chars)


def fetch_packages(wanted: PackageList, folder: Path) -> None:
    """Download every package of the list into `folder/<registry>`, unless already done with the same names."""
    fetchers: dict[str, Callable[[Sequence[str], Path], None]] = {
        "pypi": fetch_pypi,
        "npm": fetch_npm,
        "debian": fetch_debian,
        "debian_dev": fetch_debian_dev,
    }
    for registry, fetch in fetchers.items():
        target = folder / registry
        done = target / ".fetched"
        names = wanted.names(registry)
        if not names or (done.is_file() and done.read_text(encoding="utf-8").split() == list(names)):
            continue
        print(f"corpus: fetching {len(names)} packages from {registry}", file=sys.stderr, flush=True)
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        fetch(names, target)
        done.write_text("\n".join(names) + "\n", encoding="utf-8")


def fetch_pypi(names: Sequence[str], folder: Path) -> None:
    """Install wheels into one site-packages folder, without dependencies and without builds."""
    pip = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    run_client([*pip, "--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(folder), *names], folder)


def fetch_npm(names: Sequence[str], folder: Path) -> None:
    """Unpack each archive into `node_modules/<archive>`; install and run nothing."""
    archives = folder / "archives"
    archives.mkdir()
    run_client(["npm", "pack", "--silent", "--ignore-scripts", *names], archives)
    for archive in sorted(archives.glob("*.tgz")):
        unpack(archive, folder / "node_modules" / archive.name.removesuffix(".tgz"), strip=True)


def fetch_debian(names: Sequence[str], folder: Path) -> None:
    """Unpack source packages (upstream's archive and Debian's own files), each project into a folder of its name."""
    archives = folder / "archives"
    archives.mkdir()
    options = _source_options(folder)
    run_client(["apt-get", *options, "update"], folder)
    for name in names:
        try:
            run_client(["apt-get", *options, "source", "--download-only", "--only-source", "-qq", name], archives)
        except TrainingError as error:
            # Debian's archive drops old releases one by one; the corpus can do without them.
            print(f"corpus: {name} is left out: {error}", file=sys.stderr, flush=True)
        for archive in sorted(archives.iterdir()):
            if ".tar." in archive.name and not archive.name.endswith(".asc"):
                unpack(archive, folder / "sources" / name / archive.name.rpartition(".tar.")[0])
            archive.unlink()


def fetch_debian_dev(names: Sequence[str], folder: Path) -> None:
    """Unpack binary packages that contain source (headers, crates, Go packages) into `sources/<name>`."""
    archives = folder / "archives"
    archives.mkdir()
    run_client(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *names], archives)
    for archive in sorted(archives.glob("*.deb")):
        tree = folder / "sources" / archive.name.partition("_")[0]
        tree.mkdir(parents=True)
        run_client(["dpkg-deb", "-x", str(archive), str(tree)], folder)


def _source_options(folder: Path) -> list[str]:
    """Return options that give apt separate package lists, with the source packages of the machine's Debian archive."""
    lists = folder / "apt"
    (lists / "state" / "partial").mkdir(parents=True)
    (lists / "cache" / "archives" / "partial").mkdir(parents=True)
    known = [path.read_text(encoding="utf-8") for path in sorted(_APT.glob("*.sources"))]
    debian = [text.replace("Types: deb\n", "Types: deb-src\n") for text in known if "debian-archive" in text]
    if not debian:
        raise TrainingError(f"No Debian sources are named in {_APT}; take the `debian` names off the package list.")
    (lists / "debian.sources").write_text("\n".join(debian), encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": lists / "debian.sources",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": lists / "state",
        "Dir::Cache": lists / "cache",
        "APT::Sandbox::User": "root",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def unpack(archive: Path, folder: Path, *, strip: bool = False) -> None:
    """Extract the regular files (links and devices contain no source); `strip` drops the archive's top folder."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if strip:
                    member.name = member.name.partition("/")[2]
                if member.isfile() and member.name:
                    tar.extract(member, folder, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise TrainingError(f"{archive.name} cannot be unpacked ({error}); fetch it again.") from error


def run_client(command: Sequence[str], folder: Path) -> None:
    """Run a registry's client in a folder. Raises TrainingError with the reason it gives."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TrainingError(f"Fetching needs `{command[0]}`; install it or take its packages off the list.") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        reason = next((line for line in lines if line.upper().startswith(("E:", "ERROR"))), lines[-1])
        raise TrainingError(f"{command[0]} failed: {reason.strip()[:300]}; correct the package list and try again.")
