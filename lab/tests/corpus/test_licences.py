"""Licence metadata that permits training, and packages without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from codespec_lab.corpus.build import build_corpus
from codespec_lab.corpus.documents import read_documents
from codespec_lab.corpus.sources import installed_packages, npm_packages, permissive_licence, stdlib_package
from codespec_lab.corpus.standard_library import HELD_OUT_STDLIB, held_out_files

from codespec.errors import TrainingError

GPL = "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"
MIT = "License :: OSI Approved :: MIT License"
CODE = "\n".join(f"def function_number_{i}(argument):\n    return argument * {i} + len('{i}')\n" for i in range(20))


@pytest.mark.parametrize(
    ("expression", "free_text", "classifiers", "expected"),
    [
        ("MIT", None, [], "MIT"),
        ("Apache-2.0 OR GPL-3.0-only", None, [], "Apache-2.0 OR GPL-3.0-only"),
        ("MIT AND GPL-3.0-only", None, [], None),
        ("(MIT OR Apache-2.0) AND GPL-2.0-only", None, [], None),
        ("GPL-2.0-only WITH Classpath-exception-2.0", None, [], None),
        ("GPL-3.0-only", "MIT", [MIT], None),
        (None, "BSD 3-Clause License", [], "BSD-3-CLAUSE"),
        (None, "see LICENSE", [], None),
        (None, None, ["License :: OSI Approved"], None),
        (None, None, [MIT], "MIT"),
        (None, "MIT", [GPL], None),
        (None, None, [MIT, GPL], None),
        (None, None, [], None),
        (None, "Permission is hereby granted, free of charge, to MIT people only", [], None),
    ],
)
def test_only_plainly_permissive_metadata_passes(
    expression: str | None, free_text: str | None, classifiers: list[str], expected: str | None
) -> None:
    assert permissive_licence(expression, free_text, classifiers) == expected


def install(folder: Path, name: str, licence: str, text: str = CODE) -> None:
    """Write a package's files as an installer does."""
    package, info = folder / name, folder / f"{name}-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "code.py").write_text(text.replace("number", name), encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{licence}\n", encoding="utf-8")
    (info / "RECORD").write_text(f"{name}/code.py,,\n", encoding="utf-8")


def test_a_package_under_another_licence_stays_out_and_is_listed(tmp_path: Path) -> None:
    install(tmp_path / "site", "free", "License-Expression: MIT")
    install(tmp_path / "site", "viral", f"Classifier: {GPL}")
    manifest = build_corpus(installed_packages(tmp_path / "site"), tmp_path / "out")
    assert {d.package for d in read_documents(tmp_path / "out" / "corpus.jsonl.gz")} == {"free"}
    assert [entry["name"] for entry in manifest["packages"]] == ["free"]  # type: ignore[attr-defined]
    assert manifest["refused"] == [{"name": "viral", "version": "1.0", "stated": GPL}]


def test_a_required_package_with_an_unclear_licence_is_an_error(tmp_path: Path) -> None:
    install(tmp_path, "vague", "License: see the file")
    with pytest.raises(TrainingError, match=r"licence of package 'vague' is not plainly permissive .*see the file"):
        list(installed_packages(tmp_path, required=["vague"]))


def test_a_required_package_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="absent"):
        list(installed_packages(tmp_path, required=["absent"]))


def test_npm_licences_are_read_from_the_package(tmp_path: Path) -> None:
    for name, licence in (("good", "ISC"), ("bad", "Artistic-2.0"), ("vague", None)):
        (tmp_path / name).mkdir()
        stated = f', "license": "{licence}"' if licence else ""
        (tmp_path / name / "package.json").write_text(f'{{"name": "{name}", "version": "1"{stated}}}')
    assert {p.name: p.licence for p in npm_packages(tmp_path)} == {
        "npm:good": "ISC", "npm:bad": None, "npm:vague": None,
    }  # fmt: skip


def test_held_out_parts_are_in_no_corpus() -> None:
    trained = {Path(inside).parts[0].removesuffix(".py") for inside, _ in stdlib_package().files}
    held = {Path(inside).parts[0] for inside, _ in held_out_files()}
    assert held == set(HELD_OUT_STDLIB)
    assert not trained & held
    assert "json" in trained and "test" not in trained
