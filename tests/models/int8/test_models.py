"""Whole int8 models: close to their float weights, and the same text with and without speculation."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory, mkdtemp

import pytest
import torch
from safetensors.torch import load_file, save_file

from codespec.contract.types import CompletionRequest
from codespec.errors import ModelError
from codespec.models import memory_plan, stored, torch_loader
from codespec.models.heads.host import Host
from codespec.models.int8 import check
from codespec.models.int8 import convert as converter
from codespec.models.int8.convert import convert, main
from codespec.models.int8.kernels import choose_kernel
from codespec.models.int8.network import KEY, Int8Network, is_converted
from codespec.models.int8.recipe import Sizes
from codespec.models.loader import load_model
from codespec.models.rows import Rows
from codespec.models.torch_model import TorchModel
from codespec.startup.batch_invariance import find_variance
from codespec.store.conversions import convert_to_int8
from tests.models.gguf.files import write_model
from tests.models.test_model_check import attends_to_neighbours, caches_nothing, first_rows_for_last
from tests.pairs import (
    CAP,
    Garbage,
    Mixed,
    Oracle,
    Troupe,
    build,
    network_for,
    prompts,
    run,
    texts,
    total,
    varied_requests,
)
from tests.toy_tokenizers import toy_backend, toy_tokenizer

CONVERTED = ("llama", "qwen2", "qwen3", "mistral")
FOLDERS = TemporaryDirectory(prefix="codespec-int8-")  # for the whole test run
QUANTIZED = ("gemma2", "gpt2", "starcoder2", "phi3", "mixtral")  # while they are loaded


def save_float(architecture: str, seed: int = 0, **change: object) -> Path:
    folder = Path(mkdtemp(dir=FOLDERS.name))
    network = network_for(architecture, toy_tokenizer("gpt2"), seed, **change)
    network.save_pretrained(folder)
    toy_backend("gpt2").save(str(folder / "tokenizer.json"))
    return folder


float_folder = cache(save_float)


@cache
def int8_folder(architecture: str, seed: int = 0) -> Path:
    """Return a converted folder, or one that is quantized while it loads. Copy it to change it."""
    source = float_folder(architecture, seed)
    if architecture not in CONVERTED:
        return source
    folder = Path(mkdtemp(dir=FOLDERS.name))
    convert(source, folder, "0" * 64)
    return folder


@cache
def int8_model(architecture: str, seed: int = 0, twin: int = 0) -> TorchModel:
    torch.set_num_threads(1)
    return load_model(str(int8_folder(architecture, seed)), dtype="int8")


def logits(model: TorchModel, ids: list[int]) -> torch.Tensor:
    model.allocate(3, 512)
    model.admit(0, 500)
    return model.forward([Rows(0, 0, ids, keep=len(ids))])


@pytest.mark.parametrize("architecture", [*CONVERTED, *QUANTIZED])
def test_near_the_float_model(architecture: str) -> None:
    rounded = int8_model(architecture)
    assert isinstance(rounded.network, Int8Network) == (architecture in CONVERTED) and rounded.spec.dtype == "int8"
    plain = load_model(str(float_folder(architecture)), dtype="float32")
    ids = plain.tokenizer.encode(prompts(8)[7])[:200]
    got, wanted = (torch.log_softmax(logits(model, ids), -1) for model in (rounded, plain))
    divergence = (wanted.exp() * (wanted - got)).sum(-1).mean()
    assert divergence < 0.05 and (got.argmax(-1) == wanted.argmax(-1)).float().mean() > 0.8
    assert rounded.spec.parameters == plain.spec.parameters
    assert rounded.spec.notes == choose_kernel().notes


@pytest.mark.parametrize("architecture", CONVERTED)
def test_rows_do_not_depend_on_each_other(architecture: str) -> None:
    model = int8_model(architecture)
    build(model)  # find the call shape of attention
    model.allocate(3, 640)
    assert not find_variance(model, 64)


@pytest.mark.parametrize("architecture", [*CONVERTED, "gemma2"])
def test_on_equals_off(architecture: str) -> None:
    target, requests = int8_model(architecture), varied_requests()
    plain = run(build(target), requests, speculate=False)
    script = target, requests, plain
    for together in (True, False):
        troupe = Troupe(Oracle(*script), Mixed(*script), Mixed(*script, as_ids=True, seed=1), Garbage())
        done = run(build(target, troupe), requests, together=together)
        stats = total(done)
        assert texts(done) == texts(plain) and stats.drafted > stats.accepted > 20


def test_a_drafter_of_another_vocabulary_and_format() -> None:
    target, drafter = int8_model("qwen2"), int8_model("llama", seed=1)
    requests = [CompletionRequest(prefix=prefix, max_tokens=16, temperature=0.7) for prefix in prompts(4)]
    engine = build(target)
    assert engine.kernel == choose_kernel().label
    plain = engine.complete([*requests])
    done = build(target, drafter=drafter, draft_tokens=CAP).complete(requests)
    assert [one.token_ids for one in done] == [one.token_ids for one in plain] and total(done).drafted


def test_a_gguf_file_is_converted_where_the_system_takes_no_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(mmap, "MADV_DONTNEED")
    (tmp_path / "int8").mkdir()
    convert(write_model(tmp_path / "m.gguf"), tmp_path / "int8", "0" * 64)
    assert logits(load_model(str(tmp_path / "int8"), dtype="int8"), [5, 6, 7]).isfinite().all()


@pytest.mark.parametrize("form", ["Q8_0", "Q4_1", "F16"])
def test_from_a_gguf_file(form: str, tmp_path: Path) -> None:
    file, folder = write_model(tmp_path / "m.gguf", form=form), tmp_path / "int8"
    folder.mkdir()
    assert main([str(file), str(folder), "0" * 64]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert is_converted(config) and config["codespec_source"]["file"] == "m.gguf"
    model = load_model(str(folder), dtype="int8")
    plain = load_model(str(file), dtype="float32")
    ids = list(range(5, 60))
    assert (logits(model, ids).argmax(-1) == logits(plain, ids).argmax(-1)).float().mean() > 0.7


@pytest.mark.usefixtures("converters_in_this_process")
def test_a_folder_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = float_folder("llama", seed=7)
    capfd.readouterr()
    first = convert_to_int8(source)
    assert first is not None and convert_to_int8(source) == first
    assert capfd.readouterr().err.count("to int8 (once)") == 1
    assert convert_to_int8(first) is None
    settings = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 1e-3}))
    assert convert_to_int8(source) not in (None, first)


def test_a_truncated_folder_is_refused_before_anything_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = copytree(float_folder("llama"), tmp_path / "cut")
    capfd.readouterr()
    weights = source / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(ModelError, match="is truncated or corrupt"):
        convert_to_int8(source)
    assert not capfd.readouterr().err


def test_a_model_too_large_for_the_memory_is_refused_before_its_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, small = int8_folder("llama"), tmp_path / "small"
    small.mkdir()
    size = sum(part.nbytes for name, part in load_file(whole / "model.safetensors").items() if "embed" not in name)
    words = r"^0\.0 GB of memory are free and 0\.0 GB are needed \(weights of .*\): choose a smaller model, or close"
    with monkeypatch.context() as patch:
        patch.setattr(memory_plan, "available_memory", lambda: size - 1)
        patch.setattr(torch_loader, "load_network", lambda *_: pytest.fail("weights were read"))
        patch.setattr(converter, "convert_tensors", lambda *_: pytest.fail("weights were read"))
        with pytest.raises(ModelError, match=words):
            load_model(str(whole), dtype="int8")
        with pytest.raises(ModelError, match=words):
            convert(float_folder("llama"), small, "0" * 64)
    monkeypatch.setattr(memory_plan, "available_memory", lambda: size)
    convert(float_folder("llama"), small, "0" * 64)
    assert load_model(str(small), dtype="int8").spec.dtype == "int8"


def test_what_can_not_be_converted_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network = network_for("llama", toy_tokenizer("gpt2"), 9)
    network.save_pretrained(tmp_path)
    toy_backend("gpt2").save(str(tmp_path / "tokenizer.json"))
    weights = load_file(tmp_path / "model.safetensors")
    whole = dict(weights)
    out = tmp_path / "out"
    out.mkdir()
    save_file({**weights, "model.layers.0.extra.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert main([str(tmp_path), str(out), ""]) == 2
    assert "model.layers.0.extra.weight is unknown to the int8 conversion" in capfd.readouterr().err
    weights["model.embed_tokens.weight"][0] = 1e6
    save_file(weights, tmp_path / "model.safetensors")
    assert main([str(tmp_path), str(out), ""]) == 2
    assert "beyond the range of its format" in capfd.readouterr().err
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    assert main([str(tmp_path), str(out), ""]) == 2
    assert "lacks the weight model.norm.weight" in capfd.readouterr().err
    save_file(
        {name: value for name, value in whole.items() if name != "lm_head.weight"}, tmp_path / "model.safetensors"
    )
    assert main([str(tmp_path), str(out), ""]) == 2
    assert "lacks the weight lm_head.weight" in capfd.readouterr().err


def test_a_gguf_file_that_can_not_be_converted_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, planned: object, parts: Iterator[object]) -> None:
        next(parts)
        raise OSError(28, "No space left on device")

    file = write_model(tmp_path / "m.gguf", form="Q8_0")
    monkeypatch.setattr(stored, "write_weights", full)
    assert main([str(file), str(tmp_path), ""]) == 2
    assert "No space left on device" in capfd.readouterr().err


def change_config(folder: Path, **change: object) -> str:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **change}))
    return str(folder)


@pytest.mark.parametrize(
    "change",
    [{"vocabulary": 1499}, {"inner_size": 64}, {"kv_heads": 4}, {"hidden_size": 0}, {"windows": []}, {"heads": "8"},
     {"frequencies": [1.0]}, {"epsilon": None}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_a_converted_folder_that_does_not_fit_its_configuration(change: dict[str, object], tmp_path: Path) -> None:
    folder = copytree(int8_folder("llama"), tmp_path / "int8")
    plan = json.loads((folder / "config.json").read_text())[KEY]
    with pytest.raises(ModelError, match=r"does not fit config\.json|does not describe its int8 weights"):
        load_model(change_config(folder, **{KEY: {**plan, **change}}), dtype="int8")


@pytest.mark.parametrize(
    "change", [{"intermediate_size": 64}, {"attention_bias": True}, {"num_hidden_layers": 1}], ids=str
)
def test_a_model_that_does_not_fit_its_configuration_is_not_converted(
    change: dict[str, object], tmp_path: Path
) -> None:
    source = copytree(float_folder("llama"), tmp_path / "source")
    change_config(source, **change)
    (tmp_path / "int8").mkdir()
    with pytest.raises(ModelError, match=r"does not fit config\.json|is unknown to the int8 conversion"):
        convert(source, tmp_path / "int8", "0" * 64)


def test_a_start_does_without_transformers() -> None:
    """Importing it takes longer than packing a model of 0.5 billion parameters on two cores."""
    code = (
        "import sys\nfrom codespec.engine.build import load_engine\n"
        "folder = sys.argv[1]\n"
        "load_engine({'target': folder, 'drafter': folder, 'dtype': 'int8', 'drafter_dtype': 'int8'})\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'transformers']"
    )
    subprocess.run([sys.executable, "-c", code, str(int8_folder("llama"))], check=True, timeout=300)


@pytest.mark.parametrize(
    "change", [{"num_attention_heads": 0}, {"hidden_size": "128"}, {"num_hidden_layers": None}], ids=str
)
def test_odd_sizes_are_one_sentence(change: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a size"):
        Sizes.of({"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, **change})


def test_int8_weights_are_never_read_as_floats() -> None:
    folder = int8_model("llama").spec.name
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(ModelError, match="holds int8 weights: set dtype int8"):
            load_model(folder, dtype=dtype)


@pytest.mark.parametrize("fault", [first_rows_for_last, attends_to_neighbours, caches_nothing])
def test_a_broken_seam_is_noticed(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The check's tolerance covers codes rounded to the other side of a half, but not this."""
    folder = int8_model("llama").spec.name
    fault(monkeypatch)
    with pytest.raises(ModelError, match="it differs from one sequence alone by"):
        load_model(folder, dtype="int8")


def test_a_block_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check, "mix", lambda rows: rows)  # in the reference only
    with pytest.raises(ModelError, match="differs by"):
        convert(float_folder("llama"), tmp_path, "0" * 64)


def test_int8_is_for_one_process_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_loader, "find_device", lambda device: torch.device("cuda"))
    with pytest.raises(ModelError, match="int8 is for a CPU: use dtype bfloat16"):
        load_model(str(float_folder("llama")), dtype="int8", device="cuda")


def test_features_are_those_of_the_streams_own_basis() -> None:
    rounded, plain = int8_model("llama"), load_model(str(float_folder("llama")), dtype="float32")
    ids = list(range(5, 45))
    kept = []
    for model in (rounded, plain):
        model.tap([0, 1])
        logits(model, ids)
        kept.append(model.features)
    gap = (kept[0] - kept[1]).norm(dim=-1) / kept[1].norm(dim=-1)
    assert gap.max() < 0.1


def test_a_head_is_refused_in_one_sentence() -> None:
    with pytest.raises(ModelError, match="A head can't read the token vectors of LlamaForCausalLM"):
        Host.of(int8_model("llama"))
