"""Model folders on disk: valid ones give the model that was saved, broken ones one sentence with a remedy."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from codespec.backends.language_model import Rows
from codespec.backends.loader import load_model, model_facts
from codespec.backends.torch import linear
from codespec.backends.torch.attention import NAME
from codespec.backends.torch.linear import weight_and_bias
from codespec.backends.torch.loader import wrap
from codespec.backends.torch.model import TorchModel
from codespec.backends.torch.model_check import quiet
from codespec.errors import ModelError
from tests.tiny_models import sample_ids, tiny_model, tiny_network
from tests.toy_tokenizers import toy_backend, toy_tokenizer

WEIGHTS = "model.safetensors"
KIND = "gpt2"


def save(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    rows = toy_tokenizer(KIND).vocab_size + 4  # models often have spare rows
    network = tiny_network(architecture, vocab_size=rows, attention="eager", **changes)
    network.save_pretrained(folder)
    toy_backend(KIND).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """Return a copy to break."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def logits(model: TorchModel) -> torch.Tensor:
    model.allocate(1, 64)
    model.admit(0, 40)
    return model.forward([Rows(0, 0, sample_ids(40), keep=40)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_saved_is_loaded(saved: Path, dtype: str) -> None:
    tokenizer = toy_tokenizer(KIND)
    loaded = load_model(str(saved), dtype=dtype)
    made = tiny_model("llama", tokenizer, vocab_size=tokenizer.vocab_size + 4, dtype=getattr(torch, dtype))
    assert torch.equal(logits(loaded), logits(made))
    spec = loaded.spec
    assert (spec.name, spec.architecture, spec.dtype) == (str(saved), "LlamaForCausalLM", dtype)
    assert (spec.vocab_size, spec.max_length) == (tokenizer.vocab_size + 4, 1024)
    assert spec.packed != bool(spec.notes) and spec.notes == made.spec.notes
    assert loaded.token_bytes == [*tokenizer.token_bytes, b"", b"", b"", b""]
    assert loaded.exact and not load_model(str(saved), exact=False).exact


def test_a_models_facts_are_those_of_its_files(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (saved / WEIGHTS).read_bytes() + (saved / "tokenizer.json").read_bytes()
    model = load_model(str(saved))
    monkeypatch.setattr(Path, "read_bytes", lambda file: pytest.fail(f"{file} was read at once"))
    assert model_facts(model) == {
        "name": saved.name,
        "parameters": model.spec.parameters,
        "vocabulary": model.spec.vocab_size,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_parameters_count_tied_weights_once(tmp_path: Path) -> None:
    tied = load_model(str(save(tmp_path / "tied", "gemma2", tie_word_embeddings=True)))
    apart = load_model(str(save(tmp_path / "apart", "gemma2")))
    assert apart.spec.parameters - tied.spec.parameters == tied.spec.vocab_size * 128


def test_shards_and_a_path_object_with_a_home(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_network("llama", vocab_size=toy_tokenizer(KIND).vocab_size + 4, attention="eager")
    network.save_pretrained(tmp_path / "shards", max_shard_size="300KB")
    shutil.copy(saved / "tokenizer.json", tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    monkeypatch.setenv("HOME", str(tmp_path))
    assert torch.equal(logits(load_model("~/shards")), logits(load_model(str(saved))))


def test_a_tokenizer_in_the_old_files(saved: Path, tmp_path: Path) -> None:
    """vocab.json and merges.txt: read through transformers, with transformers' own end-of-text ids."""
    folder = Path(shutil.copytree(saved, tmp_path / "old"))
    (folder / "tokenizer.json").unlink()
    toy_backend(KIND).model.save(str(folder))
    names = {"eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    text = "def main(argv):\n\treturn 0\n"
    tokenizer = load_model(str(folder)).tokenizer
    assert tokenizer.encode(text) == toy_tokenizer(KIND).encode(text)
    assert tokenizer.model_eos_ids == toy_tokenizer(KIND).model_eos_ids
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert load_model(str(folder)).tokenizer.model_eos_ids == {7, 9}


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "config.json", lambda document: document.update(values))


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def drop_tensors(folder: Path) -> None:
    kept = {name: t for name, t in load_file(folder / WEIGHTS).items() if "layers.1.mlp" not in name}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def pickle_weights(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def lose_a_shard(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def spoil_a_number(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (shutil.rmtree, "There is no model folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "has no *.safetensors weights"),
    "pickled": (pickle_weights, "pickled weights are not read"),
    "cut header": (cut(WEIGHTS, 200), "is truncated or corrupt"),
    "cut data": (cut(WEIGHTS, 500_000), "is truncated or corrupt"),
    "tensors missing": (drop_tensors, "lack 3 tensors (first: model.layers.1.mlp.down_proj.weight)"),
    "a shard missing": (lose_a_shard, "model-00002-of-00002.safetensors"),
    "a number is none": (spoil_a_number, "nan"),
    "unknown type": (config(model_type="abacus"), "abacus"),
    "no layers": (config(num_hidden_layers=0), ""),
    "heads of no size": (config(num_attention_heads=0), ""),
    "other sizes": (config(intermediate_size=512), "do not have the sizes"),
    "recurrent": (config(model_type="mamba", architectures=["MambaForCausalLM"]), "recurrent layers"),
    "own attention": (config(model_type="gptj", architectures=["GPTJForCausalLM"]), "attention interface"),
    "no text": (config(architectures=["LlamaForSequenceClassification"]), "does not generate text"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
    "cut tokenizer": (cut("tokenizer.json", 2000), "tokenizer.json"),
    "a bigger tokenizer": (lambda f: toy_backend("llama3").save(str(f / "tokenizer.json")), "but its model has only"),
}


def refusal_of(name: str, **settings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(name, **settings)
    message = str(caught.value)
    assert "\n" not in message and (": " in message or "; " in message)
    return message


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders(case: str, folder: Path) -> None:
    damage, words = BROKEN[case]
    damage(folder)
    assert words in refusal_of(str(folder))


def test_settings_that_can_not_be(saved: Path) -> None:
    assert "use one of float32, bfloat16, float16" in refusal_of(str(saved), dtype="int3")


@pytest.mark.parametrize("device", ["tpu", "meta", "mps", "", "cpu:x"])
def test_unknown_devices(device: str, saved: Path) -> None:
    assert "is not known: use auto, cpu or cuda" in refusal_of(str(saved), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_no_cuda_here(saved: Path) -> None:
    assert refusal_of(str(saved), device="cuda") == "There is no CUDA device: use --device cpu."
    assert load_model(str(saved), device="auto").device.type == "cpu"


@pytest.mark.parametrize("architecture", ["gptj", "bloom"])
def test_architectures_with_an_attention_of_their_own(architecture: str, tmp_path: Path) -> None:
    message = refusal_of(str(save(tmp_path / "model", architecture)))
    assert "attention interface" in message and "choose another architecture" in message


def test_an_unlisted_one_that_transformers_can_not_give_our_attention(tmp_path: Path) -> None:
    with quiet():
        settings = transformers.FalconConfig(
            vocab_size=2000, hidden_size=64, num_hidden_layers=1, num_attention_heads=4
        )
        transformers.FalconForCausalLM(settings).save_pretrained(tmp_path)
    toy_backend(KIND).save(str(tmp_path / "tokenizer.json"))
    assert "FalconForCausalLM does not run correctly" in refusal_of(str(tmp_path))


def test_a_mamba_is_refused_with_the_reason(tmp_path: Path) -> None:
    settings = transformers.MambaConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=1)
    transformers.MambaForCausalLM(settings).save_pretrained(tmp_path)
    assert "recurrent layers of a kind that can't be rolled back yet" in refusal_of(str(tmp_path))


@pytest.mark.parametrize("known", [True, False])
def test_code_in_the_folder_is_never_run(known: bool, folder: Path) -> None:
    """A type that transformers knows is loaded with transformers' code, another one is rejected."""
    marker = folder / "ran"
    (folder / "theirs.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    names = {"AutoConfig": "theirs.Config", "AutoModelForCausalLM": "theirs.Model", "AutoTokenizer": "theirs.Model"}
    config(auto_map=names)(folder)
    if known:
        assert load_model(str(folder)).spec.architecture == "LlamaForCausalLM"
    else:
        config(model_type="theirs")(folder)
        refusal_of(str(folder))
    assert not marker.exists()


def test_loading_says_nothing_by_itself(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(str(saved))
    assert capfd.readouterr() == ("", "")
    assert NAME == "codespec"


def test_plain_weights_are_freed_one_layer_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a model of 15 GB would need 30 while it is packed."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def watch(layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
        nonlocal most
        alive.append(weakref.ref(layer.weight))  # type: ignore[arg-type]
        most = max(most, sum(weight() is not None for weight in alive))
        return weight_and_bias(layer)

    monkeypatch.setattr(linear, "weight_and_bias", watch)
    network = tiny_network("llama", num_hidden_layers=8, seed=8)
    wrap(copy.deepcopy(network), None, "tiny", device=torch.device("cpu"), dtype=torch.float32, exact=True)
    assert len(alive) == 8 * 4 + 1 and most <= 6
