"""Resolution of a model name: a folder, a GGUF file, a pulled model, a hub id, or one error sentence."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.utils import filter_repo_objects

from codespec.errors import ModelError
from codespec.store import resolve as resolving
from codespec.store.catalogue import find_entry, is_hub_id
from codespec.store.pulled import Pulled, folder_of
from codespec.store.resolve import resolve


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up an empty store, an empty current folder, and a hub that is never contacted."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def pull(name: str, model: str = "") -> Path:
    """Put an empty model into the store."""
    place = folder_of(name)
    place.mkdir(parents=True)
    if model:
        (place / model).write_bytes(b"GGUF")
    Pulled(name, "a test", "", model, {}, 0, "").write_manifest(place)
    return place


def test_a_folder_is_itself_however_it_is_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine" / "best").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(here))
    assert resolve("mine").folder() == Path("mine")
    assert resolve("./mine/best").folder() == Path("mine/best")
    assert resolve(str(here / "mine")).folder() == here / "mine"
    assert resolve("~/mine").folder() == here / "mine"
    (here / "a" / "b" / "c").mkdir(parents=True)
    assert resolve("a/b/c").folder() == Path("a/b/c")


@pytest.mark.parametrize("name", ["a" * 5000, "./" + "a" * 300, "b/" * 3000, "~nobody-of-this-name/model"])
def test_a_name_that_the_system_refuses_gets_a_sentence(name: str) -> None:
    with pytest.raises(ModelError, match=r"^The model .{26,80} can't be looked up \(.+\): check its name or path\.$"):
        resolve(name)


def test_owner_and_name_mean_the_hub_wherever_one_is(here: Path) -> None:
    """A project cannot contain a folder that is used in place of a hub model."""
    (here / "mine" / "best").mkdir(parents=True)
    with pytest.raises(
        ModelError, match=r"is both a hub id and the path of a folder: write \./mine/best for the folder\.$"
    ):
        resolve("mine/best").folder()
    assert is_hub_id("mine/best")


@pytest.mark.parametrize(
    ("name", "hub"),
    [
        ("owner/name", True),
        ("owner/name.v2-x", True),
        ("name", False),
        ("./owner/name", False),
        ("../name", False),
        ("/owner/name", False),
        ("~/name", False),
        ("a/b/c", False),
        ("folder/file.gguf", False),
        ("C:/name", False),
        ("owner\\name", False),
    ],
)
def test_what_a_hub_id_is(name: str, hub: bool) -> None:
    assert is_hub_id(name) is hub
    if hub:
        assert (resolve(name).form, resolve(name).path) == ("hub", None)
    else:
        with pytest.raises(ModelError, match="There is no"):
            resolve(name)


def test_a_pulled_model_goes_before_a_folder_of_its_name(here: Path) -> None:
    (here / "mine").mkdir()
    place = pull("mine")
    assert resolve("mine").folder() == place
    assert resolve("./mine").folder() == Path("mine")


def test_a_name_of_the_catalogue_is_never_a_projects_folder(here: Path) -> None:
    (here / "smollm2-135m").mkdir()
    with pytest.raises(ModelError, match=r"pull smollm2-135m`, or write \./smollm2-135m for the folder\.$"):
        resolve("smollm2-135m").folder()
    assert resolve("./smollm2-135m").folder() == Path("smollm2-135m")
    place = pull("smollm2-135m")
    found = resolve("smollm2-135m")
    assert found.path == place and found.entry is find_entry("smollm2-135m")


def test_a_pulled_hub_id_goes_before_a_projects_folder(here: Path) -> None:
    (here / "owner" / "name").mkdir(parents=True)
    place = pull("owner/name")
    assert resolve("owner/name").folder() == place and resolve("./owner/name").folder() == Path("owner/name")


def test_an_adapter_of_the_hub_comes_with_all_that_it_is_merged_from(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses the client's own file selection on a repository's listing."""
    files = ["adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "README.md", "training.bin"]
    seen: list[list[str]] = []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        seen.append(list(filter_repo_objects(files, allow_patterns=allow_patterns)))
        return str(here)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("owner/adapter").folder() == here
    assert seen == [files[:3]]


def test_a_pulled_hub_id_is_not_asked_of_the_hub() -> None:
    assert resolve("owner/name").path is None
    place = pull("owner/name")
    assert resolve("owner/name").folder() == resolve("owner/name").path == place


def test_a_pulled_gguf_file_is_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(resolving, "convert_gguf", lambda file: asked.append(file) or tmp_path)
    place = pull("mine", "model.gguf")
    assert resolve("mine").folder("float32") == tmp_path and asked == [place / "model.gguf"]


def test_a_name_of_the_catalogue_that_is_not_here_says_how_to_pull_it() -> None:
    with pytest.raises(
        ModelError, match=r"^smollm2-135m has not been pulled: run `codespec models pull smollm2-135m`\.$"
    ):
        resolve("smollm2-135m").folder()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere", "There is no model folder nowhere: "),
        ("./nowhere", "There is no model folder nowhere: "),
        ("nowhere.gguf", r"There is no file nowhere\.gguf: "),
        ("./sub/nowhere.GGUF", "There is no file"),
        (
            "weights.bin",
            r"weights\.bin is a file, not a model folder: give a folder, a \.gguf file or a hub id",
        ),
    ],
)
def test_what_means_nothing_is_one_sentence(name: str, sentence: str, here: Path) -> None:
    (here / "weights.bin").write_text(json.dumps({}))
    with pytest.raises(ModelError, match=sentence) as raised:
        resolve(name).folder()
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)
