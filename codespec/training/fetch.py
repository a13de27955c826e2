"""Downloads packages by name with each registry's own program, and unpacks them. Knows programs and folders, judges
no licence and no file; runs nothing that a package brings along.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from codespec.errors import TrainingError
from codespec.training.package_list import PackageList

_APT = Path("/etc/apt/sources.list.d")


def fetch_packages(wanted: PackageList, folder: Path) -> None:
    """Bring every package of the list into `folder/<registry>`; what lies there already is not fetched again."""
    fetchers: dict[str, Callable[[Sequence[str], Path], None]] = {
        "pypi": fetch_pypi,
        "npm": fetch_npm,
        "debian": fetch_debian,
        "debian_dev": fetch_debian_dev,
    }
    for registry, fetch in fetchers.items():
        place = folder / registry
        done = place / ".fetched"
        names = wanted.names(registry)
        if not names or (done.is_file() and done.read_text(encoding="utf-8").split() == list(names)):
            continue
        print(f"corpus: fetching {len(names)} packages from {registry}", file=sys.stderr, flush=True)
        if place.exists():
            shutil.rmtree(place)
        place.mkdir(parents=True)
        fetch(names, place)
        done.write_text("\n".join(names) + "\n", encoding="utf-8")


def fetch_pypi(names: Sequence[str], place: Path) -> None:
    """Wheels, unpacked into one site-packages folder; no dependencies, no builds."""
    pip = [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    _run([*pip, "--no-deps", "--no-compile", "--only-binary=:all:", "--target", str(place), *names], place)


def fetch_npm(names: Sequence[str], place: Path) -> None:
    """Packed archives, each unpacked into `node_modules/<archive>`; nothing is installed or run."""
    archives = place / "archives"
    archives.mkdir()
    _run(["npm", "pack", "--silent", "--ignore-scripts", *names], archives)
    for archive in sorted(archives.glob("*.tgz")):
        _unpack(archive, place / "node_modules" / archive.name.removesuffix(".tgz"), strip=True)


def fetch_debian(names: Sequence[str], place: Path) -> None:
    """Source packages: upstream's archive and Debian's own files, each project in a folder of its name."""
    archives = place / "archives"
    archives.mkdir()
    options = _source_options(place)
    _run(["apt-get", *options, "update"], place)
    for name in names:
        try:
            _run(["apt-get", *options, "source", "--download-only", "--only-source", "-qq", name], archives)
        except TrainingError as error:
            # Old releases leave the archive one by one; a corpus can do without one, and says so.
            print(f"corpus: {name} is left out: {error}", file=sys.stderr, flush=True)
        for archive in sorted(archives.iterdir()):
            if ".tar." in archive.name and not archive.name.endswith(".asc"):
                _unpack(archive, place / "sources" / name / archive.name.rpartition(".tar.")[0])
            archive.unlink()


def fetch_debian_dev(names: Sequence[str], place: Path) -> None:
    """Binary packages that carry source (headers, crates, Go packages), unpacked into `sources/<name>`."""
    archives = place / "archives"
    archives.mkdir()
    _run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *names], archives)
    for archive in sorted(archives.glob("*.deb")):
        tree = place / "sources" / archive.name.partition("_")[0]
        tree.mkdir(parents=True)
        _run(["dpkg-deb", "-x", str(archive), str(tree)], place)


def _source_options(place: Path) -> list[str]:
    """apt's own lists kept apart, with the sources of what the machine is set up for."""
    lists = place / "apt"
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


def _unpack(archive: Path, place: Path, *, strip: bool = False) -> None:
    """Regular files only: links and devices hold no source. `strip` drops the one folder that all lie in."""
    place.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if strip:
                    member.name = member.name.partition("/")[2]
                if member.isfile() and member.name:
                    tar.extract(member, place, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise TrainingError(f"{archive.name} cannot be unpacked ({error}); fetch it again.") from error


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TrainingError(f"Fetching needs `{command[0]}`; install it or take its packages off the list.") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        said = next((line for line in lines if line.upper().startswith(("E:", "ERROR"))), lines[-1])
        raise TrainingError(f"{command[0]} failed: {said.strip()[:300]}; mend the package list and try again.")
