"""llama.cpp's contestants without llama.cpp: the loop around a stand-in for the model, and the file's layout."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codespec.bench.decode.contest import Answer, ModelCache, PeerError, Variant
from codespec.bench.decode.peers import llama_cpp
from codespec.bench.decode.peers.gguf_file import FORMATS, neighbours, tensors, why_not
from codespec.bench.decode.peers.llama_cpp import (
    NGRAM_NAME,
    LlamaContestant,
    LlamaFamily,
    LlamaModel,
    Original,
    Row,
    choose,
    find_original,
    look_up,
)
from codespec.bench.decode.tasks import Task, Workload
from codespec.bench.sites import PROMPTS, Site
from codespec.catalogue.conversion_cache import SOURCE
from codespec.catalogue.store import Pulled, folder_of
from codespec.config import EngineConfig
from codespec.models.processor import Processor
from codespec.text.tokenizer import TextTokenizer
from tests.cli.conftest import write_model
from tests.pairs import network_for
from tests.toy_tokenizers import toy_tokenizer

VOCABULARY = 5  # so few that a text repeats itself


class FakeModel:
    """The logits of a row depend on the ids before it; what was not rolled back, or is fed twice, is seen."""

    room = 200

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}
        self.rows = 0

    def clear(self, threads: int) -> None:
        self.held.clear()

    def forward(self, parts: Sequence[tuple[int, int, Sequence[int], int]]) -> list[list[Row]]:
        found = []
        for sequence, start, ids, keep in parts:
            held = self.held.setdefault(sequence, [])
            assert len(held) == start, "the cache is not as long as it must be"
            held += ids
            self.rows += len(ids)
            found.append([self._row(held[: len(held) - keep + 1 + n]) for n in range(keep)])
        return found

    def roll_back(self, sequence: int, length: int) -> None:
        del self.held[sequence][length:]

    def _row(self, ids: Sequence[int]) -> Row:
        dice = random.Random(repr(ids[-2:]))
        return np.array([dice.random() * 4 for _ in range(VOCABULARY)], dtype=np.float32)


def decode(ngram: bool, work: Workload) -> tuple[Answer, FakeModel]:
    model = FakeModel()
    models: ModelCache[LlamaModel] = ModelCache(lambda _: model)  # type: ignore[arg-type,return-value]
    name = NGRAM_NAME if ngram else "llama.cpp bf16"
    return LlamaContestant(name, ["bf16"], models).answer(work, Variant("bfloat16")), model


def task(number: int, ids: Sequence[int]) -> Task:
    return Task(number, Site("", kind=PROMPTS), tuple(ids))


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=3, max_size=20), min_size=1, max_size=4),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.8]),
    st.sampled_from([frozenset[int](), frozenset({2}), frozenset({0, 3})]),
)
def test_a_lookup_changes_no_text(
    prompts: list[list[int]], tokens: int, temperature: float, ends: frozenset[int]
) -> None:
    tasks = tuple(task(number, ids) for number, ids in enumerate(prompts))
    work = Workload(tasks, tokens, temperature, ends=ends)
    (plain, _), (guessed, model) = decode(False, work), decode(True, work)
    assert guessed.ids == plain.ids
    assert all(len(ids) == tokens or ids[-1] in ends for ids in plain.ids)
    assert not any(ends & set(ids[:-1]) for ids in plain.ids)
    assert plain.drafted == plain.accepted == 0
    assert plain.rounds == plain.tokens == sum(map(len, plain.ids)) - len(prompts)
    assert guessed.rounds + guessed.accepted == guessed.tokens == plain.tokens
    assert guessed.accepted <= guessed.drafted
    assert model.rows == sum(len(ids) for ids in prompts) + guessed.rounds + guessed.drafted


def test_lookups_are_used() -> None:
    work = Workload((task(0, (1, 2, 3)),), 60)
    guessed, _ = decode(True, work)
    assert guessed.accepted > 0 and guessed.rounds < 59


def test_a_text_too_long_for_the_cache_is_told() -> None:
    with pytest.raises(PeerError, match="more than 200"):
        decode(False, Workload((task(0, (1,) * 150),), 60))


@given(st.lists(st.integers(0, 3), min_size=3, max_size=30), st.integers(0, 8))
def test_what_is_looked_up_stood_there(ids: list[int], count: int) -> None:
    found = look_up(ids, count)
    assert len(found) <= count
    expected: list[int] = []
    for size in (2, 1):
        place = next((n for n in range(len(ids) - size) if ids[n : n + size] == ids[-size:]), None)
        if place is not None:
            expected = ids[place + size : place + size + count]
            break
    assert found == expected


def test_choices_follow_the_chances() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    assert choose(row, 0.0, np.random.default_rng(0)) == 0
    dice = np.random.default_rng(0)
    counts = np.bincount([choose(row, 1.0, dice) for _ in range(4000)], minlength=3) / 4000
    assert np.abs(counts - [0.5, 0.3, 0.2]).max() < 0.03
    colder = np.bincount([choose(row, 0.5, dice) for _ in range(4000)], minlength=3) / 4000
    assert np.abs(colder - np.array([0.25, 0.09, 0.04]) / 0.38).max() < 0.03


def test_rows_turn_with_their_neighbours() -> None:
    """Turning halves and then moving rows is moving rows and then turning neighbours, at every angle."""
    heads, size, width = 3, 8, 5
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(heads * size, width, generator=generator)
    x, angles = torch.randn(width, generator=generator), torch.randn(size // 2, generator=generator)
    low, high = (weight @ x).view(heads, 2, size // 2).unbind(1)
    halves = torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], dim=1)
    even, odd = (neighbours(weight, heads) @ x).view(heads, size // 2, 2).unbind(2)
    turned = torch.stack([even * angles.cos() - odd * angles.sin(), odd * angles.cos() + even * angles.sin()], dim=2)
    moved = halves.view(heads, 2, size // 2).transpose(1, 2)
    assert torch.allclose(turned, moved, atol=1e-6)


def test_every_weight_has_a_name() -> None:
    network = network_for("llama", toy_tokenizer("gpt2"))
    named = dict(tensors(network))
    assert len(named) == len(list(network.parameters()))
    layers = network.config.num_hidden_layers
    assert {f"blk.{n}.ffn_down.weight" for n in range(layers)} < set(named) and "token_embd.weight" in named


@pytest.mark.parametrize(
    ("architecture", "kind", "reason"),
    [("llama", "gpt2", ""), ("qwen2", "gpt2", "only a Llama"), ("llama", "llama2", "byte-level")],
)
def test_what_can_not_be_written_is_told(architecture: str, kind: str, reason: str) -> None:
    tokenizer = toy_tokenizer(kind)
    told = why_not(network_for(architecture, tokenizer), tokenizer)
    assert reason in told and bool(told) == bool(reason)


def test_what_is_not_installed_is_reported() -> None:
    family = LlamaFamily(EngineConfig(), 2, 16)
    assert len(family.contestants) in (0, 3)
    if not family.contestants:
        assert set(family.absent) == {*(f"llama.cpp {kind.lower()}" for kind in FORMATS), NGRAM_NAME}
        assert all("pip install llama-cpp-python gguf" in why for why in family.absent.values())


@pytest.mark.parametrize(
    ("kind", "written"), [("Q4_1", {"llama.cpp bf16", "llama.cpp q8_0"}), ("Q8_0", {"llama.cpp bf16"})]
)
def test_the_users_own_file_takes_part_in_time_only(
    kind: str, written: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With AMX it is loaded without repacked weights, and others with them; one format takes part once."""
    loaded: list[tuple[Path, bool]] = []

    class Loaded(FakeModel):
        def __init__(self, file: Path, slots: int, room: int, vocabulary: int, repacked: bool) -> None:
            super().__init__()
            loaded.append((file, repacked))

        def spelled(self, token: int) -> bytes:
            return tokenizer.token_bytes[token]

    folder = converted_folder(tmp_path, kind)
    tokenizer = TextTokenizer.from_folder(folder)
    original = Original(tmp_path / "mine.gguf", kind)
    monkeypatch.setattr(llama_cpp, "find_original", lambda target: original)
    monkeypatch.setattr(llama_cpp, "LlamaModel", Loaded)
    monkeypatch.setattr(llama_cpp, "PACKAGES", ("json",))  # installed everywhere
    monkeypatch.setattr(llama_cpp, "processor", lambda: Processor("one with AMX", ("amx_bf16", "avx2"), (), 1))
    monkeypatch.setattr(llama_cpp, "write_gguf", lambda *_: None)
    family = LlamaFamily(EngineConfig(target=str(folder)), 2, 64)
    assert {c.name for c in family.contestants if c.reference} == written
    own = next(c for c in family.contestants if c.name == f"llama.cpp {kind.lower()}")
    lookup = next(c for c in family.contestants if c.name == NGRAM_NAME)
    assert own.plain and not lookup.plain and len(family.contestants) == len(written) + 2
    assert {v.dtype for v in lookup.variants()} == {*(name[10:] for name in written), kind.lower()}
    work = Workload((task(0, (1, 2, 3)),), 3)
    for contestant in family.contestants:
        contestant.answer(work, contestant.variants()[0])
    assert [repacked for file, repacked in loaded if file == original.file] == [False]
    assert all(repacked for file, repacked in loaded if file != original.file) and len(loaded) == len(written) + 1


def converted_folder(tmp_path: Path, kind: str) -> Path:
    folder = write_model(tmp_path / "target", "gpt2", 0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, SOURCE: {"quantization": kind, "sha256": "ab" * 32}}))
    return folder


def test_the_original_is_the_named_file_or_a_pulled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = converted_folder(tmp_path, "Q4_1")
    assert find_original(str(folder)) is None, "the file is gone"
    place = folder_of("tiny")
    place.mkdir(parents=True)
    file = place / "tiny.gguf"
    file.write_bytes(b"GGUF")
    Pulled("tiny", "somewhere", "", file.name, {file.name: "ab" * 32}, 4, "2026-01-01").write_manifest(place)
    assert find_original(str(folder)) == Original(file, "Q4_1")
    shutil.rmtree(place)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    named = tmp_path / "named.gguf"
    named.write_bytes(b"GGUF")
    monkeypatch.setattr("codespec.bench.decode.peers.llama_cpp.find_folder", lambda name: folder)
    assert find_original(str(named)) == Original(named, "Q4_1")
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(named)}))
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    assert find_original(str(adapter)) == Original(named, "Q4_1")
