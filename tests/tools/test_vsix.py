"""Contents of a packed extension: each forbidden thing is planted, and must be found."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import check_vsix
from tools.check_vsix import faults_of

ROOT = Path(__file__).resolve().parents[2]
SOUND = {
    "[Content_Types].xml": b"<Types/>",
    "extension.vsixmanifest": b"<PackageManifest/>",
    "extension/package.json": b"`/home/me/codespec[torch]`, /path/to/codespec",
    "extension/dist/extension.js": b'const token="";fetch("http://127.0.0.1:8765/health")',
    "extension/media/icon.png": b"\x89PNG",
}
WHEEL = "extension/server/codespec-0.1.0-py3-none-any.whl"
BESIDES = [f"extension/server/codespec_{name}-0.1.0-py3-none-any.whl" for name in ("weights", "upstream")]
BESIDES.append("extension/server/codespec_native-0.1.0-py3-none-win_amd64.whl")


def packed(folder: Path, more: dict[str, bytes], wheel: dict[str, bytes] | None = None) -> Path:
    file = folder / "codespec.vsix"
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in {
            **SOUND,
            **dict.fromkeys(BESIDES, inner({})),
            WHEEL: inner(wheel or {"codespec/__init__.py": b"x = 1\n"}),
            **more,
        }.items():
            archive.writestr(name, data)
    return file


def inner(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def test_a_sound_one_has_no_faults(tmp_path: Path) -> None:
    assert faults_of(packed(tmp_path, {}), (ROOT, tmp_path)) == []


KEY = b"-----BEGIN OPENSSH " + b"PRIVATE KEY-----\n" + b"A" * 64
PLANTED = {
    "a source file": ({"extension/src/extension.ts": b""}, "extension/src/extension.ts is not expected in it"),
    "a lock": ({"extension/package-lock.json": b"{}"}, "extension/package-lock.json is not expected in it"),
    ".env": ({"extension/.env": b""}, "extension/.env has the name of a secret file"),
    "a key": ({"extension/package.json": KEY}, "extension/package.json contains a private key"),
    "a token": (
        {"extension/dist/extension.js": b'x="hf_' + b"a" * 34 + b'"'},
        "extension/dist/extension.js contains an access token",
    ),
    "an index with a password": (
        {"extension/server/requirements-base.txt": b"--index-url https://me:" + b"hunter2@index.example/simple"},
        "extension/server/requirements-base.txt contains an address with a password",
    ),
    "a home": (
        {"extension/dist/extension.js": b'"/home/' + b'jane/src/x.ts"'},
        "extension/dist/extension.js contains '/home/" + "jane/', a path on one machine",
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_must_not_be_in_it_is_found(what: str, tmp_path: Path) -> None:
    files, fault = PLANTED[what]
    assert fault in faults_of(packed(tmp_path, files))


def test_the_folder_it_was_built_in_and_the_wheels_inside_are_looked_at(tmp_path: Path) -> None:
    file = packed(tmp_path, {}, {"codespec/a.py": b"# " + str(tmp_path).encode(), "codespec/b.py": KEY})
    assert faults_of(file, (tmp_path,)) == [
        f"{WHEEL}!codespec/a.py contains {str(tmp_path)!r}, a path on one machine",
        f"{WHEEL}!codespec/b.py contains a private key",
    ]


def test_one_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_vsix, "MAX_BYTES", 100)
    assert "it has 0.0 MB, and the limit is 0 MB" in faults_of(packed(tmp_path, {}))


def test_the_command_says_it_in_sentences(tmp_path: Path) -> None:
    file = packed(tmp_path, {"extension/.env": b""})
    done = subprocess.run(
        [sys.executable, "-m", "tools.check_vsix", file], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "vsix: extension/.env is not expected in it: correct its packaging in editors/vscode.",
        "vsix: extension/.env has the name of a secret file: correct its packaging in editors/vscode.",
    ]
