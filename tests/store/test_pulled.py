"""The store of pulled models: names stay inside the folder, and manifests are used only if they match the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.config import SHIPPED
from codespec.errors import ConfigError
from codespec.store.choice import named_pair
from codespec.store.pulled import Pulled, find_pulled, folder_name, models_home, name_of, pulled

REFERENCE = "smollm2-135m"


def put(name: str, model: str = "", /, **change: Any) -> Path:
    """Store a pulled model as `pull` would."""
    folder = models_home() / name.replace("/", "--")
    folder.mkdir(parents=True)
    if model:
        (folder / model).write_bytes(b"GGUF")
    Pulled(
        name, "test", "MIT", model, {model or "config.json": "ab" * 32}, 4, "2026-01-01T00:00:00+00:00"
    ).write_manifest(folder)
    if change:
        manifest = folder / "codespec_model.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    return folder


def test_home_follows_the_environment(home: Path) -> None:
    assert models_home() == home and pulled() == {} and find_pulled(REFERENCE) is None


def test_found(home: Path) -> None:
    folder, other = put(REFERENCE, "a.gguf"), put("owner/name")
    assert find_pulled(REFERENCE) == folder / "a.gguf"
    assert find_pulled("owner/name") == other == home / "owner--name"
    assert list(pulled()) == ["owner/name", REFERENCE]


def test_a_name_and_its_hub_id_mean_the_same(home: Path) -> None:
    folder = put("qwen2.5-coder-7b")
    assert find_pulled("Qwen/Qwen2.5-Coder-7B") == folder


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"name": "other"},
        {"name": "../other"},
        {"name": 3},
        {"model": "../../x.gguf"},
        {"model": "gone.gguf"},
        {"bytes": "many"},
        {"sha256": []},
        {"more": 1},
    ],
    ids=str,
)
def test_a_manifest_that_does_not_fit(change: dict[str, Any]) -> None:
    put("mine", "a.gguf", **change)
    assert find_pulled("mine") is None and pulled() == {}


@pytest.mark.parametrize("text", ["", "[]", "{", "\udcff"])
def test_a_broken_manifest(text: str) -> None:
    (put("mine") / "codespec_model.json").write_text(text, errors="surrogateescape")
    assert find_pulled("mine") is None and pulled() == {}


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/../b", "a/b/c", "/x", ".x", "a--b", "x.", "a\\b", "é", "x.lock"]
)
def test_no_name(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid model name"):
        folder_name(name)
    assert find_pulled(name) is None


@given(st.text(st.sampled_from("aB1-._/\\~\0 \n"), max_size=12))
def test_names_never_leave_the_folder_and_never_meet(name: str) -> None:
    try:
        folder = folder_name(name)
    except ConfigError:
        return
    assert Path(folder).name == folder and not folder.startswith(".")
    assert name_of(folder) == name


def test_pairs() -> None:
    assert named_pair("starter").target == str(SHIPPED / "target")
    reference = named_pair(REFERENCE)
    assert (reference.target, reference.drafter) == (REFERENCE, str(SHIPPED / "drafter"))
    large = named_pair("Qwen/Qwen2.5-Coder-32B")
    assert (large.target, large.drafter, large.dtype) == ("qwen2.5-coder-32b", "qwen2.5-coder-1.5b", "bfloat16")


def test_a_folder_of_models_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    models_home().mkdir(parents=True)
    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(ConfigError, match=r"models can't be read \(Permission denied\): check its permissions\.$"):
        pulled()
