"""A GGUF file converts to the model it was made from, or gives one error sentence, but never another model."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from transformers import AutoModelForCausalLM

from codespec.backends.gguf import convert as converter
from codespec.backends.gguf import settings, weights
from codespec.backends.gguf.convert import convert
from codespec.backends.gguf.header import MAGIC, Header, read_header
from codespec.backends.gguf.tokenizer import read_vocabulary
from codespec.errors import ModelError
from codespec.text.tokenizer import TextTokenizer
from tests.backends.gguf.files import CASES, GROUPS, HEADS, HIDDEN, network, write_model
from tests.backends.gguf.llama_cpp_ids import write_vocabulary

ROUNDED = ("qwen3_next", "qwen35", "qwen35_wide", "qwen35_moe")  # rates of decay are stored as exponentials
IDS = torch.tensor([[5 + 37 * place % 600 for place in range(40)]])


def converted(file: Path) -> Path:
    folder = file.parent / "made"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    convert(file, folder, "0" * 64)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_the_one_the_file_was_made_from(case: str, tmp_path: Path) -> None:
    folder = converted(write_model(tmp_path / "m.gguf", case))
    loader: Any = AutoModelForCausalLM
    made, report = loader.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad():
        got, wanted = made(IDS).logits, network(case)(IDS).logits
        if case == "phi3_longrope":  # a text within the original context has other factors
            assert torch.equal(made(IDS[:, :9]).logits, network(case)(IDS[:, :9]).logits)
    if case in ROUNDED:
        assert (got - wanted).abs().max() < 1e-5 * wanted.abs().max()
    else:
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("form", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_quantized_numbers_stay_what_they_are(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix by matrix, rows in the model's order; norms unchanged."""
    file = write_model(tmp_path / "m.gguf", form=form)
    whole = load_file(converted(file) / "model.safetensors")
    monkeypatch.setattr(weights, "PIECE", 3 * HIDDEN)
    pieces = load_file(converted(file) / "model.safetensors")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    down = stored["blk.1.ffn_down.weight"]
    assert np.array_equal(
        whole["model.layers.1.mlp.down_proj.weight"], gguf.quants.dequantize(down.data, down.tensor_type)
    )
    key = stored["blk.0.attn_k.weight"]
    rows = gguf.quants.dequantize(key.data, key.tensor_type).reshape(GROUPS, -1, 2, HIDDEN).swapaxes(1, 2)
    assert np.array_equal(whole["model.layers.0.self_attn.k_proj.weight"], rows.reshape(-1, HIDDEN))
    assert whole.keys() == pieces.keys() and all(np.array_equal(whole[name], pieces[name]) for name in whole)
    source = json.loads((tmp_path / "made" / "config.json").read_text())[converter.SOURCE]
    assert source == {
        "format": 1,
        "file": "m.gguf",
        "sha256": "0" * 64,
        "quantization": form,
        "architecture": "llama",
    }


def test_mxfp4_becomes_bfloat16_without_loss(tmp_path: Path) -> None:
    """The experts of gpt-oss: gates and ups alternate, inputs are rows."""
    file = write_model(tmp_path / "m.gguf", "gpt_oss", form="MXFP4")
    held = load_torch(converted(file) / "model.safetensors")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    parts = [stored[f"blk.2.ffn_{name}_exps.weight"] for name in ("gate", "up")]
    gates, ups = (torch.from_numpy(gguf.quants.dequantize(part.data, part.tensor_type)) for part in parts)
    experts = held["model.layers.2.mlp.experts.gate_up_proj"]
    assert experts.dtype == torch.bfloat16 and held["model.norm.weight"].dtype == torch.float32
    assert torch.equal(experts[:, :, ::2].float(), gates.transpose(1, 2))
    assert torch.equal(experts[:, :, 1::2].float(), ups.transpose(1, 2))


def _resized(name: str, *shape: int) -> dict[str, Any]:
    return {name: np.ones(shape, np.float32)}


@pytest.mark.parametrize(
    ("case", "settings", "tensors", "sentence"),
    [
        ("qwen3_moe", {"qwen3moe.expert_count": 8}, {}, "its arrangement of experts"),
        ("qwen3_moe", {"qwen3moe.expert_used_count": 5}, {}, "its arrangement of experts"),
        ("qwen3_moe", {"qwen3moe.expert_gating_func": 2}, {}, "its choice of experts"),
        ("qwen3_moe", {}, _resized("blk.1.ffn_up_exps.weight", 4, 16, 64), "differ in size"),
        ("gpt_oss", {}, {"blk.1.attn_sinks.weight": None}, r"it lacks 1 tensors \(first: blk\.1\.attn_sinks"),
        ("granite", {"granite.rope.scaling.finetuned": False}, {}, "attention without rotary embeddings"),
        ("phi3_longrope", {}, _resized("rope_factors_long.weight", 5), "its rotary factors"),
        ("llama", {"llama.attention.head_count_kv": [2, 0]}, {}, "which differs from layer to layer"),
        ("gpt_oss", {"gpt-oss.attention.sliding_window_pattern": [True]}, {}, "does not name 3 layers"),
        ("qwen35", {"qwen35.ssm.time_step_rank": 5}, {}, "recurrent layers do not fit together"),
        ("qwen35", {"qwen35.ssm.state_size": 24}, {}, "does not have the size in its settings"),
        ("qwen35", {"qwen35.rope.dimension_sections": [3, 3]}, {}, "its sections of positions"),
        ("qwen35", {}, _resized("blk.0.ssm_a", 6), "holds a rate that is not negative"),
    ],
)
def test_families_refuse_what_would_be_another_model(
    case: str, settings: dict[str, Any], tensors: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    refused(write_model(tmp_path / "m.gguf", case, settings=settings, tensors=tensors), sentence)


def test_layers_that_only_draft_are_left_out(tmp_path: Path) -> None:
    """Files of Qwen3.5 may contain an extra layer after the model's own, which predicts several tokens."""
    extra = {"blk.4.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}
    settings = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    folder = converted(write_model(tmp_path / "m.gguf", "qwen35", settings=settings, tensors=extra))
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 4


def test_the_folder_says_how_texts_begin_and_end(tmp_path: Path) -> None:
    folder = converted(write_model(tmp_path / "m.gguf", change=lambda writer: writer.add_eot_token_id(2)))
    tokenizer = TextTokenizer.from_folder(folder)
    assert tokenizer.bos_ids == () and tokenizer.model_eos_ids == {0, 2}
    assert json.loads((folder / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": [0, 2]}


@pytest.mark.parametrize(
    ("settings", "tensors", "sentence"),
    [
        ({"llama.attention.clamp_kqv": 8.0}, {}, "unsupported: its setting llama.attention.clamp_kqv"),
        ({"llama.expert_count": 4}, {}, "a mixture of experts"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, {}, "rotary scaling 'longrope'"),
        ({"llama.rope.dimension_count": 8}, {}, "8 rotated dimensions"),
        ({"llama.attention.head_count": 0}, {}, "sizes do not fit"),
        ({"llama.attention.head_count": None}, {}, "head_count is missing"),
        ({"llama.block_count": 3}, {}, "it lacks 9 tensors .first: blk.2.attn_k.weight"),
        ({"llama.block_count": 1}, {}, r"its tensor blk\.1\."),
        ({}, {"blk.0.attn_v.bias": np.ones(HIDDEN // HEADS * GROUPS, np.float32)}, r"its tensor blk\.0\.attn_v\.bias"),
        ({}, {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}, r"its tensor blk\.0\.attn_sinks"),
        ({}, {"rope_freqs.weight": np.full(8, 3, np.float32)}, "its rotary factors"),
        ({}, {"output_norm.weight": np.full(HIDDEN, np.nan, np.float32)}, "holds a value that is not a number"),
        ({"split.count": 3}, {}, "one of 3 parts of a model: join the parts"),
        ({"general.type": "adapter"}, {}, "contains an adapter, not a whole model: merge the adapter"),
        ({"general.type": "mmproj"}, {}, "the image part of a model"),
        ({"general.type": "imatrix"}, {}, "statistics"),
        ({"general.alignment": 24}, {}, "its alignment is not a power of two"),
        ({"llama.context_length": "many"}, {}, "context_length is missing or has the wrong type"),
    ],
)
def test_what_would_be_another_model_is_one_sentence(
    settings: dict[str, Any], tensors: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    changed = {key: value for key, value in settings.items() if not key.startswith("general")}
    file = write_model(tmp_path / "m.gguf", settings=changed, tensors=tensors, change=general(settings))
    refused(file, sentence)


def general(settings: dict[str, Any]) -> Any:
    def change(writer: Any) -> None:
        if "general.type" in settings:
            writer.kv_data[0].pop("general.type", None)
            writer.add_type(settings["general.type"])
        if "general.alignment" in settings:
            writer.add_uint32("general.alignment", settings["general.alignment"])

    return change


def refused(file: Path, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as raised:
        converted(file)
    message = str(raised.value)
    assert (
        message.startswith((str(file), "The converted"))
        and ": " in message
        and message.endswith(".")
        and "\n" not in message
    )


def test_an_unknown_architecture_is_one_sentence(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "mamba")
    writer.add_tensor("a.weight", np.ones((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(
        tmp_path / "m.gguf",
        "architecture 'mamba', which can't be converted: use the model's folder in the Hugging Face layout",
    )


def test_a_vocabulary_alone_is_one_sentence(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "m.gguf", "smollm")
    refused(tmp_path / "m.gguf", "contains only a vocabulary, not a whole model: use the file that contains")


def test_a_number_format_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    file = write_model(tmp_path / "m.gguf")
    data = bytearray(file.read_bytes())
    at = data.index(b"blk.0.attn_k.weight") + len(b"blk.0.attn_k.weight") + 4 + 16
    for kind, sentence in ((9, "is quantized as Q8_1, which is not supported"), (77, "its number format 77")):
        data[at : at + 4] = struct.pack("<I", kind)
        file.write_bytes(data)
        refused(file, sentence)


def test_tensors_on_one_another_are_one_sentence(tmp_path: Path) -> None:
    """Many tensors that each span the whole file would fill the disk."""
    file = write_model(tmp_path / "m.gguf")
    data, name = bytearray(file.read_bytes()), b"blk.0.attn_k.weight"
    at = data.index(name) + len(name) + 4 + 16 + 4
    data[at : at + 8] = bytes(8)
    file.write_bytes(data)
    refused(file, "overlaps another tensor")


def test_a_token_longer_than_any_is_one_sentence(tmp_path: Path) -> None:
    """If scores define the merges, each way to split a token is tried."""
    header = Header(tmp_path / "m.gguf", 0, {"tokenizer.ggml.tokens": ["a", "b" * 5000]}, {})
    with pytest.raises(ModelError, match="is too long"):
        read_vocabulary(header)


START = struct.pack("<4sIQQ", MAGIC, 3, 0, 1)
HUGE = 1 << 60


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04" + bytes(60), "is not a GGUF file"),
        (MAGIC + bytes(4), "it ends within its header"),
        (struct.pack("<4sIQQ", MAGIC, 1, 0, 0), "of version 1"),
        (struct.pack(">4sIQQ", MAGIC, 3, 0, 0), "big-endian"),
        (struct.pack("<4sIQQ", MAGIC, 3, HUGE, 0), "declares too many entries"),
        (struct.pack("<4sIQQ", MAGIC, 3, 0, HUGE), "declares too many entries"),
        (START + struct.pack("<Q", HUGE), "it ends within its header"),
        (START + struct.pack("<Q1sI", 1, b"k", 8) + struct.pack("<Q", HUGE), "it ends within its header"),
        (START + struct.pack("<Q1sI", 1, b"k", 9) + struct.pack("<IQ", 8, HUGE), "it ends within its header"),
        (START + struct.pack("<Q1sI", 1, b"k", 9) + struct.pack("<IQ", 5, HUGE), "it ends within its header"),
        (
            START + struct.pack("<Q1sI", 1, b"k", 9) + struct.pack("<IQ", 9, 1),
            "a list has elements of the unknown type 9",
        ),
        (START + struct.pack("<Q1sI", 1, b"k", 99) + bytes(40), "unknown type 99"),
        (START + struct.pack("<Q1sI", 1, b"\xff", 0) + bytes(40), "not UTF-8"),
        (struct.pack("<4sIQQQ1sI", MAGIC, 3, 1, 0, 1, b"t", 99), "has 99 dimensions"),
        (struct.pack("<4sIQQQ1sIQQIQ", MAGIC, 3, 1, 0, 1, b"t", 2, HUGE, HUGE, 0, 0), "larger than the file"),
        (struct.pack("<4sIQQQ1sIQIQ", MAGIC, 3, 1, 0, 1, b"t", 1, 1, 0, HUGE), "larger than the file"),
    ],
)
def test_a_broken_or_hostile_header_is_one_sentence(data: bytes, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    refused(file, sentence)


def widen_query(file: Path) -> None:
    data, name = bytearray(file.read_bytes()), b"blk.0.attn_q.weight"
    at = data.index(name) + len(name) + 4 + 8  # after the number of dimensions, and the columns
    data[at : at + 8] = struct.pack("<Q", MANY)
    file.write_bytes(data)


def widen_heads(file: Path) -> None:
    values = {
        f"llama.{key}": MANY for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    }
    write_model(file, "llama3", settings=values)


MANY = 1 << 22


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (widen_query, "it ends within blk.0.attn_q.weight"),
        (widen_heads, "blk.0.attn_q.weight does not have the size in its settings"),
    ],
)
def test_sizes_that_are_not_in_the_file_take_no_memory(
    change: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    file = write_model(tmp_path / "m.gguf", "llama3")
    change(file)
    refused(file, sentence)  # first run: load modules
    tracemalloc.start()
    try:
        refused(file, sentence)
        assert tracemalloc.get_traced_memory()[1] < MANY
    finally:
        tracemalloc.stop()


def test_rotary_factors_are_counted_before_more_of_them_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = read_header(write_model(tmp_path / "m.gguf", "llama3"))
    monkeypatch.setattr(settings, "llama3_factors", lambda *_: pytest.fail("the size of the header is believed"))
    with pytest.raises(ModelError, match="its rotary factors"):
        settings._llama3(header, 500000.0, MANY)


def test_a_file_cut_anywhere_is_one_sentence(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf", form="Q8_0").read_bytes()
    file, dice = tmp_path / "m.gguf", random.Random(3)
    for length in [24, 25, len(whole) - 64, *dice.sample(range(26, len(whole) - 64), 40)]:
        file.write_bytes(whole[:length])
        refused(file, r"is truncated or corrupt \((it ends within .*|.* is larger than the file)\): download")


def test_no_changed_byte_of_a_header_ends_in_anything_but_a_sentence(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf", form="Q8_0").read_bytes()
    file, dice = tmp_path / "m.gguf", random.Random(5)
    end = min(tensor.start for tensor in read_header(tmp_path / "whole.gguf").tensors.values())
    errors = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(4, end)] = dice.choice((0, 1, 7, 9, 127, 255))
        file.write_bytes(data)
        try:
            converted(file)
        except ModelError as error:
            errors += 1
            assert "\n" not in str(error)
    assert errors > 20  # other changes affect a name, or nothing


def test_a_disk_without_room_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_model(tmp_path / "m.gguf")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(9, 9, 10_000_000))
    refused(file, r"The converted model needs .* of disk space, and .* has 10 MB free: free some")
    assert not list((tmp_path / "made").iterdir())


def test_the_process_says_its_sentence_and_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"nothing of the kind")
    assert converter.main([str(tmp_path / "m.gguf"), str(tmp_path), ""]) == 2
    assert "is not a GGUF file" in capsys.readouterr().err
    assert converter.main([str(tmp_path / "none.gguf"), str(tmp_path), ""]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert converter.main([str(write_model(tmp_path / "w.gguf")), str(tmp_path / "missing"), ""]) == 2
    assert capsys.readouterr().err.count("\n") == 1
