"""Resolution of NAME|HUB_ID|FILE|FOLDER, the user's own files and folders, disk space, and removal."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from filelock import FileLock

from codespec.errors import CodespecError, ConfigError, ModelError
from codespec.store import pull as pulling
from codespec.store.conversions import SOURCE, converted_home
from codespec.store.disk import MARGIN
from codespec.store.download import HubSource, IndexSource
from codespec.store.pull import find_sources, part_of, partly, pull, remove
from codespec.store.pulled import pulled, read_pulled
from codespec.store.source import LocalSource, name_from

GGUF = b"GGUF" + bytes(1000)


def quiet(line: str) -> None:
    """Ignore the message."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "My Model.Q8_0.gguf"
    path.write_bytes(GGUF)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a snapshot in the hub client's layout: links to files elsewhere."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "Tiny_Model"
    blobs.mkdir()
    snapshot.mkdir()
    for number, name in enumerate(
        ["config.json", "tokenizer.json", "model.safetensors", "modeling.py", "pytorch_model.bin"]
    ):
        (blobs / str(number)).write_text(name)
        (snapshot / name).symlink_to(blobs / str(number))
    return snapshot


def test_what_is_meant(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (only,) = find_sources("smollm2-135m")
    assert isinstance(only, IndexSource)
    for name in ("qwen2.5-coder-7b", "Qwen/Qwen2.5-Coder-7B"):
        (source,) = find_sources(name)
        assert isinstance(source, HubSource) and (source.name, source.repository) == (
            "qwen2.5-coder-7b",
            "Qwen/Qwen2.5-Coder-7B",
        )
    assert find_sources("owner/name")[0].name == "owner/name"
    assert find_sources(str(file))[0].name == "my-model.q8_0"
    assert find_sources(str(folder), "mine")[0].name == "mine"
    upper = file.rename(file.with_name("Upper.GGUF"))
    monkeypatch.chdir(upper.parent)
    assert isinstance(find_sources("Upper.GGUF")[0], LocalSource)


@pytest.mark.parametrize(
    ("where", "kinds"), [("any", [HubSource, IndexSource]), ("hub", [HubSource]), ("index", [IndexSource])]
)
def test_a_model_that_is_in_two_places(where: str, kinds: list[type]) -> None:
    sources = find_sources("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", where=where)
    assert [type(source) for source in sources] == kinds
    assert {source.name for source in sources} == {"qwen2.5-coder-0.5b-instruct"}


@pytest.mark.parametrize(
    ("wanted", "where", "words"),
    [
        ("smollm2-135m", "hub", "smollm2-135m is not on the hub: leave out --source"),
        ("qwen2.5-coder-7b", "index", "qwen2.5-coder-7b is not on the package index: leave out --source"),
        ("owner/name", "hub", "--source applies only to catalogue models, not to owner/name: leave out"),
        ("{file}", "index", "--source applies only to catalogue models"),
    ],
)
def test_a_place_where_it_is_not(wanted: str, where: str, words: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        find_sources(wanted.format(file=file), where=where)


def test_an_id_means_the_hub_whatever_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert isinstance(find_sources("owner/name")[0], HubSource)
    assert isinstance(find_sources("./owner/name")[0], LocalSource)


@pytest.mark.parametrize(
    ("wanted", "name", "words"),
    [
        ("gpt", "", "'gpt' is not in the catalogue"),
        ("gone.gguf", "", "There is no file or folder gone.gguf"),
        ("./gone", "", "There is no file or folder gone"),
        ("a--b/c", "", "is not a valid model name"),
        ("smollm2-135m", "mine", "--name applies only to files and folders"),
        ("{file}", "smollm2-135m", "smollm2-135m is already the name of another model"),
        ("{file}", "starter", "starter is already the name of another model"),
        ("{file}", "a/b", "a/b is already the name of another model"),
        ("{file}", "../b", "is not a valid model name"),
    ],
)
def test_nothing_is_meant(wanted: str, name: str, words: str, file: Path) -> None:
    with pytest.raises(CodespecError, match=words):
        find_sources(wanted.format(file=file), name)


@pytest.mark.parametrize(
    ("stem", "name"), [("My Model.Q8_0", "my-model.q8_0"), ("a--b", "a-b"), ("..a..", "a"), ("Käse", "k-se")]
)
def test_names_from_files(stem: str, name: str) -> None:
    assert name_from(stem) == name


def test_no_name_from_a_file() -> None:
    with pytest.raises(ConfigError, match="choose a name with --name"):
        name_from("…")


def test_a_file_is_copied(file: Path) -> None:
    model = pull(find_sources(str(file)), quiet)
    assert model.path.read_bytes() == GGUF and model.model == file.name
    assert read_pulled("my-model.q8_0") == model
    assert pull(find_sources(str(file)), quiet) == model
    with file.open("r+b") as stream:  # in place, like some programs
        stream.write(b"gguf")
    assert model.path.read_bytes() == GGUF


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_other_bytes_under_the_same_name(kind: str, file: Path, folder: Path) -> None:
    wanted, changed = (file, file) if kind == "file" else (folder, folder / "config.json")
    model = pull(find_sources(str(wanted)), quiet)
    changed.write_bytes(changed.read_bytes() + b" ")
    with pytest.raises(ConfigError, match=rf"has changed since: run `codespec models remove {model.name}` first\.$"):
        pull(find_sources(str(wanted)), quiet)
    remove(model.name, quiet)
    assert pull(find_sources(str(wanted)), quiet).sha256 != model.sha256


def test_two_files_of_one_name(file: Path, tmp_path: Path) -> None:
    pull(find_sources(str(file)), quiet)
    (tmp_path / "other").mkdir()
    other = shutil.copy(file, tmp_path / "other")
    with pytest.raises(ConfigError, match=r"has been pulled already, from .*: choose another name with --name"):
        pull(find_sources(str(other)), quiet)
    assert pull(find_sources(str(other), "second"), quiet).name == "second"


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("<html>")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        pull([LocalSource(tmp_path / "x.gguf")], quiet)


def test_a_folder(folder: Path) -> None:
    model = pull(find_sources(str(folder)), quiet)
    assert model.name == "tiny_model" and model.path == model.folder
    assert model.sha256.keys() == {"config.json", "tokenizer.json", "model.safetensors"}
    assert not any(path.is_symlink() for path in model.folder.iterdir())


def test_a_folder_with_pickles_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="pickled"):
        pull(find_sources(str(folder)), quiet)
    assert partly() == []


def test_disk_full(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 40_000_000, 40_000_000))
    with pytest.raises(ModelError, match=r"tiny_model needs 42 bytes of disk space, and .* has 40 MB free: free some"):
        pull(find_sources(str(folder)), quiet)
    assert pulled() == {} and partly() == [] and not (home / ".part").exists()


def test_a_file_that_just_fits(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, MARGIN + len(GGUF)))
    assert pull(find_sources(str(file)), quiet).path.is_file()


@pytest.mark.parametrize(("number", "fix"), [(errno.ENOSPC, "free some"), (errno.EACCES, "check that path")])
def test_what_the_disk_refuses(number: int, fix: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, place: Path) -> None:
        raise OSError(number, os.strerror(number), str(place))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(
            ModelError, match=rf"my-model\.q8_0 can't be pulled, .*my-model.* \({os.strerror(number)}\): {fix}"
        ):
            pull(find_sources(str(file)), quiet)
    pull(find_sources(str(file)), quiet)
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ModelError, match=rf"my-model\.q8_0 can't be removed, .* \({os.strerror(number)}\): {fix}"):
        remove("my-model.q8_0", quiet)


def test_a_full_disk_names_where_the_copy_goes(file: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """shutil.copyfile raises an error with both files' names."""

    def fill(source: Path, place: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(place))

    monkeypatch.setattr(shutil, "copyfile", fill)
    with pytest.raises(ModelError, match=rf"because of {home}/\.part/.* \(No space left on device\): free some"):
        pull(find_sources(str(file)), quiet)


def test_no_place_for_models(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/x")
    with pytest.raises(ModelError, match=r"because of /dev/null/x.* \(Not a directory\): .* set XDG_DATA_HOME"):
        pull(find_sources(str(file)), quiet)


def test_a_listener_that_has_gone_is_no_disk(file: Path) -> None:
    def gone(line: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        pull(find_sources(str(file)), gone)


def test_parts_have_the_names_of_models() -> None:
    for name in ("a/b--c", "a-/b", "mine"):
        part_of(name).mkdir(parents=True)
    assert sorted(partly()) == ["a-/b", "a/b--c", "mine"]


def test_the_room_for_conversion_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 0, 900_000_000))
    with pytest.raises(ModelError, match=r"smollm2-135m needs 1\.4 GB of disk space, and .* has 900 MB free"):
        pull(find_sources("smollm2-135m"), quiet)


def test_a_stranger_in_the_way(folder: Path, home: Path) -> None:
    (home / "tiny_model").mkdir(parents=True)
    with pytest.raises(ModelError, match="exists but is not a pulled model"):
        pull(find_sources(str(folder)), quiet)


def make_folder(name: str, source: dict[str, object]) -> Path:
    """Make a folder like one converted from a model."""
    folder = converted_home() / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(5000))
    (folder / "config.json").write_text(json.dumps({SOURCE: source}))
    return folder


def test_removed_with_what_was_made_of_it(file: Path) -> None:
    model = pull(find_sources(str(file)), quiet)
    digest = model.sha256[model.model]
    converted, merged = make_folder(digest, {"sha256": digest}), make_folder("ef" * 32, {"base_sha256": digest})
    other, broken = make_folder("cd" * 32, {"base_sha256": "01" * 32}), make_folder("ab" * 32, {})
    (broken / "config.json").write_text("[]")
    gone = [model.folder, converted, merged]
    size = sum(path.stat().st_size for folder in gone for path in folder.iterdir())
    assert remove("my-model.q8_0", quiet) == size
    assert not any(folder.exists() for folder in gone) and other.exists() and broken.exists() and file.exists()
    assert not list(converted_home().glob("*.part"))
    assert pulled() == {} and partly() == []


def test_a_folder_is_removed_with_what_was_made_of_its_weights(folder: Path) -> None:
    model = pull(find_sources(str(folder)), quiet)
    weights = {"model.safetensors": model.sha256["model.safetensors"]}
    converted = make_folder("ab" * 32, {"base_weights": weights})
    others: list[dict[str, object]] = [
        {"base_weights": {**weights, "model-2.safetensors": "01" * 32}},
        {"base_weights": {"model.safetensors": "01" * 32}},
        {"base_weights": {}}, {"base_weights": []}, {"base_weights": {"model.safetensors": []}}, {"base_weights": None},
        {"base_sha256": ""}, {"base_sha256": weights["model.safetensors"]}, {},
    ]  # fmt: skip
    kept = [make_folder(f"{number}" * 64, source) for number, source in enumerate(others)]
    remove(model.name, quiet)
    assert not converted.exists() and all(other.exists() for other in kept)


def test_what_is_being_made_is_waited_for(file: Path) -> None:
    model = pull(find_sources(str(file)), quiet)
    converted = make_folder(model.sha256[model.model], {})
    with FileLock(converted.with_suffix(".lock")):
        removal = threading.Thread(target=remove, args=(model.name, quiet))
        removal.start()
        while model.folder.exists():
            removal.join(0.01)
        removal.join(0.1)
        assert removal.is_alive() and converted.exists()
    removal.join(60)
    assert not removal.is_alive() and not converted.exists()


def test_linked_files_free_nothing(file: Path) -> None:
    model = pull(find_sources(str(file)), quiet)
    model.path.unlink()
    os.link(file, model.path)
    manifest = (model.folder / "codespec_model.json").stat().st_size
    assert remove(model.name, quiet) == manifest and file.read_bytes() == GGUF


def test_removing_what_is_not_there(file: Path) -> None:
    with pytest.raises(ModelError, match="gpt has not been pulled: there are no models"):
        remove("gpt", quiet)
    pull(find_sources(str(file)), quiet)
    with pytest.raises(ModelError, match=r"gpt has not been pulled: choose one of my-model\.q8_0"):
        remove("gpt", quiet)
    with pytest.raises(ConfigError, match="is not a valid model name"):
        remove("../data", quiet)


def test_a_manifest_cannot_send_the_removal_elsewhere(file: Path) -> None:
    model = pull(find_sources(str(file)), quiet)
    manifest = model.folder / "codespec_model.json"
    manifest.write_text(manifest.read_text().replace(model.sha256[model.model], "../../../data"))
    found = read_pulled(model.name)
    assert found and pulling.made_from(found.sha256, found.model) == []
