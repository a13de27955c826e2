"""The catalogue's data: every entry is complete, every name resolves, and the memory advice fits."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from codespec.api.config import SHIPPED
from codespec.store import catalogue
from codespec.store.catalogue import (
    BYTES,
    NATIVE_ROOM,
    OWN_DRAFTERS,
    TORCH_ROOM,
    Entry,
    Index,
    find_entry,
    read_advice,
    read_catalogue,
)
from codespec.store.choice import DEFAULTS, LARGEST
from codespec.store.conversions import base_model_name, is_adapter
from codespec.store.pulled import folder_name
from codespec.text import fim_templates
from codespec.text.edit_formats import edit_formats

ROOT = Path(__file__).resolve().parents[2]
ALL = list(read_catalogue().values())


def _packed(entry: Entry) -> bool:
    return any(isinstance(source, Index) for source in entry.sources)


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_entry_is_whole(entry: Entry) -> None:
    families = {family.name for family in fim_templates._FAMILIES}
    assert folder_name(entry.name) == entry.name == entry.name.lower()
    assert entry.title and entry.licence and entry.card.startswith("https://")
    assert entry.dtype in BYTES and entry.context >= 2048 and entry.parameters > 1e8
    assert entry.fim == "declared" if entry.adapter else entry.fim in {*families, ""}
    assert entry.drafter in {*OWN_DRAFTERS, "none"} or entry.drafter in read_catalogue()
    if folder := OWN_DRAFTERS.get(entry.drafter):
        assert (SHIPPED / folder / "model.safetensors").is_file()
    assert (entry.drafter == "own-qwen") <= (entry.fim == "qwen")
    if entry.hub:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.hub.id) and entry.hub.id in entry.card
    if entry.file:
        assert entry.file.name.endswith(".gguf") and re.fullmatch("[0-9a-f]{64}", entry.file.sha256)
        assert entry.dtype == "native" or entry.adapter, "adapters are merged into float weights"
        assert (entry.dtype == "native") == (0.7 * entry.size < entry.read < entry.size)
    else:
        quantized = entry.name == "gpt-oss-20b"
        assert (entry.size / entry.parameters in (2, 4)) != quantized  # bytes per weight


@pytest.mark.parametrize("entry", [entry for entry in ALL if _packed(entry)], ids=lambda entry: entry.name)
def test_parts_make_the_file(entry: Entry) -> None:
    (index,) = [source for source in entry.sources if isinstance(source, Index)]
    assert entry.file and sum(part.bytes for part in index.parts) == entry.file.bytes and index.size <= entry.size
    digests = [digest for part in index.parts for digest in (part.wheel_sha256, part.member_sha256)]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests) and len(set(digests)) == len(digests)
    assert len({part.package for part in index.parts}) == len(index.parts)
    assert not any("{" in part.package + part.member for part in index.parts)


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_drafter_is_small(entry: Entry) -> None:
    drafter = read_catalogue().get(entry.drafter)
    if entry.edits:
        assert entry.drafter == "own", "the window is the draft of an edit"
        return
    smallest = min(other.parameters for other in ALL if other.fim and not other.adapter)
    if drafter:
        assert 10 * drafter.parameters <= entry.parameters and drafter.drafter in OWN_DRAFTERS
    else:
        assert 10 * smallest > entry.parameters


@pytest.mark.parametrize("entry", [entry for entry in ALL if entry.adapter], ids=lambda entry: entry.name)
def test_an_adapter_ships_with_its_card_and_its_licence(entry: Entry) -> None:
    folder = SHIPPED / entry.adapter
    weights, card = folder / "adapter_model.safetensors", (folder / "README.md").read_text(encoding="utf-8")
    assert weights.stat().st_size <= 20e6 and is_adapter(folder) and base_model_name(folder) == entry.name
    assert f"license: {entry.licence.lower()}" in card and f"base_model: {entry.name}" in card
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert {"fim_prefix", "fim_suffix", "fim_middle", "fim_end", "codespec_fim_orders"} <= settings.keys()


def test_what_must_be_there() -> None:
    names = (
        "smollm2-135m qwen2.5-coder-0.5b qwen2.5-coder-1.5b-instruct starcoder2-15b deepseek-coder-1.3b codegemma-7b"
        " qwen3-coder-30b-a3b qwen3-coder-next qwen3.5-2b qwen3.5-4b granite-4.0-350m granite-4.0-1b gpt-oss-20b"
    )
    assert set(names.split()) <= read_catalogue().keys()
    for name, parts in (("smollm2-135m", 1), ("qwen2.5-coder-0.5b-instruct", 6), ("qwen2.5-coder-1.5b-instruct", 22)):
        index = read_catalogue()[name].sources[-1]
        assert isinstance(index, Index) and len(index.parts) == parts


def test_licences_that_people_get_wrong() -> None:
    licences = {name: entry.licence for name, entry in read_catalogue().items()}
    for ending in ("", "-instruct"):
        assert "non-commercial" in licences[f"qwen2.5-coder-3b{ending}"]
        assert licences[f"qwen2.5-coder-7b{ending}"] == "Apache-2.0"
    assert "non-production" in licences["codestral-22b"] and licences["seed-coder-8b"] == "MIT"
    assert {name for name, entry in read_catalogue().items() if entry.gated} == {
        "codegemma-2b",
        "codegemma-7b",
        "codestral-22b",
    }


def test_advice_fits_its_memory() -> None:
    assert [advice.gigabytes for advice in read_advice()] == [1, 2, 8, 16, 24, 48, 80]
    for advice in read_advice():
        target, drafter = read_catalogue()[advice.target], read_catalogue().get(advice.drafter)
        needed = target.memory + (drafter.weights if drafter else 0)
        native = target.dtype == "native"
        bare = target.memory - (NATIVE_ROOM if native else TORCH_ROOM)
        assert bare == (target.size if native else BYTES[target.dtype] * target.parameters)
        assert needed <= 0.95e9 * advice.gigabytes and target.fim


def test_models_for_edits_are_never_chosen_for_completion() -> None:
    edits = {entry.name: entry.edits for entry in ALL if entry.edits}
    assert edits == {
        "sweep-next-edit-0.5b": "sweep-server",
        "sweep-next-edit-1.5b": "sweep-server",
        "zeta": "zeta-1",
        "zeta-2.1": "zeta-2.1",
    }
    recommended = {advice.target for advice in read_advice()} | {advice.drafter for advice in read_advice()}
    assert not edits.keys() & {*recommended, *DEFAULTS, LARGEST, *(entry.drafter for entry in ALL)}
    assert all(read_catalogue()[name].licence == "Apache-2.0" for name in edits)


@pytest.mark.parametrize("entry", [entry for entry in ALL if entry.edits], ids=lambda entry: entry.name)
def test_a_model_for_edits_is_recognized_by_each_of_its_names(entry: Entry) -> None:
    names = [entry.name, *([entry.hub.id] if entry.hub else []), *([entry.file.name] if entry.file else [])]
    formats = [form for form in edit_formats().values() if form.models]
    for name in names:
        assert [form.name for form in formats if re.search(form.models, name, re.IGNORECASE)] == [entry.edits], name


def test_found_by_name_and_by_hub_id() -> None:
    entry = read_catalogue()["qwen2.5-coder-7b"]
    assert find_entry("Qwen2.5-Coder-7B") is find_entry("qwen/qwen2.5-coder-7b") is entry
    assert find_entry("Qwen/other") is find_entry("other") is None


def test_the_catalogue_is_in_the_package() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "codespec" in wheel["packages"] and catalogue.CATALOGUE.parent == ROOT / "codespec" / "store"
    assert "catalogue.toml" not in (ROOT / ".gitignore").read_text()
