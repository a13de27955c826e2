"""Package lists, Debian's copyright files, and fetching with stand-ins for the registries' programs."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from codespec_lab.corpus.fetch import (
    STARTER_LIST,
    PackageList,
    fetch_debian,
    fetch_npm,
    fetch_packages,
    fetch_pypi,
    read_package_list,
)
from codespec_lab.corpus.sources import HELD_OUT_PROJECTS, debian_sources, licence_of, npm_packages, parse_copyright

from codespec.errors import TrainingError

COPYRIGHT = """Format: copyright-format/1.0
Upstream-Name: sample

Files: *
Copyright: 2020 Somebody
License: Expat

Files: lib/queue.h lib/tree?.h
Copyright: 1991 Others
License: GPL-2+
 The text of it
 .
 goes on here.

Files: lib/open/*
Copyright: 1999 Others
License: MIT or Apache-2.0

License: Expat
 Permission is hereby granted
"""


def test_the_last_matching_paragraph_names_the_licence() -> None:
    rules = parse_copyright(COPYRIGHT)
    message = {path: licence_of(path, rules) for path in ("a.c", "lib/queue.h", "lib/tree2.h", "lib/open/deep/x.h")}
    assert message == {
        "a.c": "MIT", "lib/queue.h": "GPL-2+", "lib/tree2.h": "GPL-2+", "lib/open/deep/x.h": "MIT OR Apache-2.0",
    }  # fmt: skip
    assert parse_copyright("This package was debianised by hand.\nLicense: MIT\n") == []


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_a_debian_source_gives_only_files_that_are_plainly_permissive(tmp_path: Path) -> None:
    files = {"up-1.0/a.c": "", "up-1.0/lib/queue.h": "", "up-1.0/lib/open/x.h": "", "up-1.0/debian/fix.c": ""}
    write_tree(tmp_path / "sample", {**files, "deb/debian/copyright": COPYRIGHT})
    write_tree(tmp_path / "vague", {"up/a.c": "", "up/debian/copyright": "Made by somebody."})
    found = {package.name: package for package in debian_sources(tmp_path)}
    assert {inside for inside, _ in found["debian:sample"].files} == {"up-1.0/a.c", "up-1.0/lib/open/x.h"}
    assert found["debian:sample"].licence == "MIT AND MIT OR Apache-2.0"
    assert found["debian:vague"].licence is None and not found["debian:vague"].files


def pack(path: Path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake `npm` and `apt-get` that deliver the files in `shelf` and fail for names that contain `gone`."""
    shelf, tools = tmp_path / "shelf", tmp_path / "bin"
    shelf.mkdir()
    tools.mkdir()
    script = f"""#!/bin/sh
for last; do :; done
case "$last" in *gone*) echo "E: $last is not there" >&2; exit 1;; update) exit 0;; esac
cp {shelf}/"$last"* .
"""
    for name in ("npm", "apt-get"):
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return shelf


def test_npm_archives_are_unpacked_and_read(programs: Path, tmp_path: Path) -> None:
    pack(
        programs / "left-1.tgz", {"package/package.json": '{"name": "left", "license": "MIT"}', "package/src/a.ts": "x"}
    )
    (tmp_path / "new").mkdir()
    fetch_npm(["left"], tmp_path / "new")
    (package,) = npm_packages(tmp_path / "new" / "node_modules")
    assert (package.name, package.licence, [inside for inside, _ in package.files]) == ("npm:left", "MIT", ["src/a.ts"])


def test_no_pip_of_the_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.py").write_text("open('was-run', 'w').close()\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(TrainingError, match=r"No matching distribution|Could not find a version"):
        fetch_pypi(["not-on-this-machine"], tmp_path)
    assert not (tmp_path / "was-run").exists()


def test_an_archive_cannot_write_outside_its_folder(programs: Path, tmp_path: Path) -> None:
    pack(programs / "evil-1.tgz", {"package/../../../outside.js": "x"})
    (tmp_path / "deep").mkdir()
    with pytest.raises(TrainingError, match="cannot be unpacked"):
        fetch_npm(["evil"], tmp_path / "deep")
    assert not list(tmp_path.rglob("outside.js"))


def test_a_source_that_left_the_archive_is_told_and_left_out(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codespec_lab.corpus.fetch._source_options", lambda place: [])
    pack(programs / "zed_1.orig.tar.gz", {"zed-1/a.c": "x"})
    place = tmp_path / "debian"
    place.mkdir()
    fetch_debian(["zed", "gone"], place)
    assert [path.name for path in (place / "sources").rglob("*.c")] == ["a.c"]
    assert "gone is left out: apt-get failed: E: gone is not there" in capsys.readouterr().err


def test_a_missing_program_or_package_is_one_sentence(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    with pytest.raises(TrainingError, match=r"npm failed: E: gone is not there; correct the package list"):
        fetch_npm(["gone"], tmp_path / "one")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "two").mkdir()
    with pytest.raises(TrainingError, match="Fetching needs `npm`; install it"):
        fetch_npm(["left"], tmp_path / "two")


def test_what_was_fetched_is_not_fetched_again(programs: Path, tmp_path: Path) -> None:
    pack(programs / "left-1.tgz", {"package/package.json": "{}"})
    nothing: dict[str, tuple[str, ...]] = {"pypi": (), "npm": (), "debian": (), "debian_dev": ()}
    wanted = PackageList({**nothing, "npm": ("left",)}, nothing, {})
    fetch_packages(wanted, tmp_path / "packages")
    (programs / "left-1.tgz").unlink()
    fetch_packages(wanted, tmp_path / "packages")
    assert (tmp_path / "packages" / "npm" / "node_modules" / "left-1" / "package.json").is_file()


def test_the_starter_list_holds_out_whole_projects_in_every_language() -> None:
    wanted = read_package_list(STARTER_LIST)
    held = {name for names in wanted.held_out.values() for name in names}
    assert held <= HELD_OUT_PROJECTS
    assert wanted.max_chars["python"] >= sum(wanted.max_chars.values()) / 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pypi = [", "cannot be read"),
        ('[pypi]\ntrain = ["a"]\nheld_out = ["a"]', "a must not be both trained on and held out"),
        ('[megabytes]\npython = "many"', "cannot be read"),
    ],
)
def test_a_wrong_list_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(TrainingError, match=message):
        read_package_list(tmp_path / "list.toml")
