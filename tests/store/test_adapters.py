"""A model with an adapter is one merged model, made once: from the adapter's own folder or a catalogue entry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

from codespec.backends.gguf.convert import convert
from codespec.backends.loader import load_model
from codespec.backends.torch.merge_adapter import merge
from codespec.errors import ModelError
from codespec.pair import read_facts
from codespec.store import conversions
from codespec.store import resolve as resolving
from codespec.store.catalogue import read_catalogue
from codespec.store.conversions import BASE_FILE, BASE_WEIGHTS, SOURCE, check_adapter, is_adapter, merge_adapter
from codespec.store.resolve import resolve
from codespec.store.source import sha256_of
from tests.backends.gguf.files import write_model
from tests.converters import convert_here

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # a warning of peft itself


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a model as a file."""
    return write_model(tmp_path / "m.gguf", form="Q8_0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an adapter of that model with matrices that change its output."""
    place = tmp_path_factory.mktemp("made")
    (place / "plain").mkdir()
    convert(write_model(place / "m.gguf", form="Q8_0"), place / "plain", "0" * 64)
    torch.manual_seed(0)
    network = get_peft_model(
        AutoModelForCausalLM.from_pretrained(place / "plain"),
        LoraConfig(r=2, lora_alpha=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, value in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.2)
    network.save_pretrained(place / "adapter")
    return place / "adapter"


@pytest.fixture
def adapter(base: Path, made: Path, tmp_path: Path) -> Path:
    """Return the adapter, which names `base` as its model."""
    folder = Path(shutil.copytree(made, tmp_path / "adapter"))
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(base)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the converters in this process; some tests start real ones."""
    monkeypatch.setattr(conversions, "run_converter", convert_here)


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return the cache key of a merge of two small folders, without merging."""
    monkeypatch.setattr(conversions, "check_adapter", lambda adapter: None)
    monkeypatch.setattr(conversions, "convert_once", lambda conversion: Path(conversion.digest))
    for place, name in (("of", "model"), ("small", "adapter_model")):
        (tmp_path / place).mkdir()
        (tmp_path / place / f"{name}.safetensors").write_bytes(b"numbers")
        (tmp_path / place / "adapter_config.json").write_text("{}")
    return lambda: merge_adapter(tmp_path / "of", tmp_path / "small").name


@pytest.mark.parametrize(
    "file",
    [
        *("of/config.json", "of/generation_config.json", "of/tokenizer.json", "of/chat_template.jinja"),
        *("of/merges.txt", "of/tokenizer.model"),
        *("small/tokenizer_config.json", "small/chat_template.jinja"),
    ],
)
def test_all_that_a_merge_takes_over_makes_it_another(file: str, tmp_path: Path, digest: Callable[[], str]) -> None:
    before = digest()
    (tmp_path / file).write_text("1")
    first = digest()
    (tmp_path / file).write_text("{}")
    assert len({before, first, digest()}) == 3


def test_a_model_of_parts_with_an_adapters_settings_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert is_adapter(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"numbers")
    assert not is_adapter(tmp_path)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_an_adapters_folder_is_a_model_of_its_own(base: Path, adapter: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    folder = resolve(str(adapter)).folder()
    assert "merging the adapter" in capfd.readouterr().err
    plain, merged = weights(resolve(str(base)).folder("float32")), weights(folder)
    name = "model.layers.0.self_attn.q_proj.weight"
    small = load_file(adapter / "adapter_model.safetensors")
    a, b = (small[f"base_model.{name[:-7].replace('model', 'model.model', 1)}.lora_{x}.weight"] for x in "AB")
    assert torch.allclose(merged[name], plain[name] + b @ a, atol=1e-6)
    assert torch.equal(merged["model.embed_tokens.weight"], plain["model.embed_tokens.weight"])
    assert resolve(str(adapter)).folder() == folder and capfd.readouterr().err == ""
    source, of = (
        json.loads((at / "config.json").read_text())[SOURCE] for at in (folder, resolve(str(base)).base_folder())
    )
    assert source["base_sha256"] == of["sha256"] != source["sha256"] == folder.name
    facts = read_facts(resolve(str(adapter)))
    assert facts.reasons == () and facts.tokenizer is not None
    assert load_model(str(adapter), exact=False).tokenizer.fingerprint == facts.tokenizer.fingerprint


@pytest.mark.usefixtures("here")
def test_a_pattern_chooses_what_the_weights_hold(adapter: Path, tmp_path: Path) -> None:
    file = adapter / "adapter_config.json"
    by_name = weights(resolve(str(adapter)).folder())
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "target_modules": r".*\.(self_attn|mlp)\..*_proj", "rank_pattern": {}}))
    by_pattern = weights(resolve(str(adapter)).folder())
    assert by_name.keys() == by_pattern.keys()
    assert all(torch.equal(by_name[name], by_pattern[name]) for name in by_name)


@pytest.mark.usefixtures("here")
def test_a_changed_adapter_is_merged_again(adapter: Path) -> None:
    before = resolve(str(adapter)).folder()
    small = load_file(adapter / "adapter_model.safetensors")
    save_file({name: 2 * value for name, value in small.items()}, adapter / "adapter_model.safetensors")
    assert resolve(str(adapter)).folder() != before


@pytest.mark.usefixtures("here")
def test_the_catalogue_gives_a_model_its_adapter(base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(next(iter(read_catalogue().values())), adapter=str(adapter))
    monkeypatch.setattr(resolving, "find_entry", lambda name: entry if name == entry.name else None)
    monkeypatch.setattr(resolving, "find_pulled", lambda name: base if name == entry.name else None)
    assert resolve(entry.name).folder() == resolve(str(adapter)).folder()
    assert resolve(str(base)).folder("float32") == resolve(entry.name).base_folder()


def break_config(adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))


def break_weights(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").write_bytes(b"no")


def lose_weights(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()


def change_shape(adapter: Path) -> None:
    whole = load_file(adapter / "adapter_model.safetensors")
    less = {name: value[:-1].contiguous() if "lora_B" in name else value for name, value in whole.items()}
    save_file(less, adapter / "adapter_model.safetensors")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (break_config, r"names no base model: set base_model_name_or_path in this file\.$"),
        (break_weights, r"adapter_model\.safetensors is truncated or corrupt: download or export the model again\.$"),
        (lose_weights, r"can't be read \(No such file or directory\): download or export the model again\.$"),
        (change_shape, r"^The adapter .* does not fit its model \(.*\): train or download the adapter again\.$"),
    ],
)
def test_what_is_wrong_with_an_adapter_is_one_sentence(
    adapter: Path, harm: Callable[[Path], None], sentence: str
) -> None:
    harm(adapter)
    with pytest.raises(ModelError, match=sentence):
        resolve(str(adapter)).folder()


@pytest.mark.usefixtures("here")
def test_a_tokenizer_in_the_old_files_is_taken_over(base: Path, adapter: Path, tmp_path: Path) -> None:
    plain, folder = Path(shutil.copytree(resolve(str(base)).base_folder(), tmp_path / "plain")), tmp_path / "merged"
    (plain / "tokenizer.json").unlink()
    for name in ("vocab.json", "merges.txt", "tokenizer.model"):
        (plain / name).write_text(name)
    folder.mkdir()
    merge(plain, adapter, folder, "0" * 64)
    assert all((folder / name).read_text() == name for name in ("vocab.json", "merges.txt", "tokenizer.model"))


@pytest.mark.usefixtures("here")
def test_a_merged_folder_names_the_model_that_it_was_made_from(base: Path, adapter: Path, tmp_path: Path) -> None:
    """`models remove` reads that name."""
    own = Path(shutil.copytree(resolve(str(base)).base_folder(), tmp_path / "own"))
    (own / "notes.json").write_text("{}")  # not the file's model
    merged, of_file = merge_adapter(own, adapter), merge_adapter(resolve(str(base)).base_folder(), adapter)
    weights = {"model.safetensors": sha256_of(own / "model.safetensors")}
    for folder, key, value in ((merged, BASE_WEIGHTS, weights), (of_file, BASE_FILE, sha256_of(base))):
        assert json.loads((folder / "config.json").read_text())[SOURCE][key] == value


@pytest.mark.usefixtures("here")
def test_the_same_pair_of_files_is_made_once(base: Path, adapter: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = resolve(str(base)).base_folder()
    assert merge_adapter(plain, adapter) == merge_adapter(plain, adapter)
    assert capfd.readouterr().err.count("merging the adapter") == 1


PROJECTIONS = ["q_proj", "v_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": PROJECTIONS},
    "all layers": {"target_modules": "all-linear"},
    "ranks": {"target_modules": PROJECTIONS, "rank_pattern": {"q_proj": 4}},
    "alphas": {"target_modules": PROJECTIONS, "alpha_pattern": {"v_proj": 9}},
    "rank-stabilized": {"target_modules": PROJECTIONS, "use_rslora": True},
    "DoRA": {"target_modules": PROJECTIONS, "use_dora": True},
    "all biases": {"target_modules": PROJECTIONS, "bias": "all"},
    "biases of its layers": {"target_modules": PROJECTIONS, "bias": "lora_only"},
    "biases of its own": {"target_modules": PROJECTIONS, "lora_bias": True},
    "a norm": {"target_modules": PROJECTIONS, "modules_to_save": ["norm"]},
    "one layer": {"target_modules": PROJECTIONS, "layers_to_transform": [1], "layers_pattern": "layers"},
    "all but one": {"target_modules": PROJECTIONS, "exclude_modules": ["layers.0.self_attn.q_proj"]},
    "PiSSA": {"target_modules": PROJECTIONS, "init_lora_weights": "pissa"},
    "tokens": {"target_modules": PROJECTIONS, "trainable_token_indices": [3, 7]},
    "a whole output layer": {"target_modules": PROJECTIONS, "modules_to_save": ["lm_head"]},
    "whole embeddings": {"target_modules": PROJECTIONS, "modules_to_save": ["embed_tokens"]},
    "whole tied embeddings": {
        "target_modules": PROJECTIONS,
        "modules_to_save": ["embed_tokens"],
        "ensure_weight_tying": True,
    },
    "the output layer": {"target_modules": [*PROJECTIONS, "lm_head"]},
    "embeddings": {"target_modules": [*PROJECTIONS, "embed_tokens"]},
    "tied embeddings": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "both": {"target_modules": ["embed_tokens", "lm_head"]},
    "the output layer by DoRA": {"target_modules": ["lm_head"], "use_dora": True},
    "transposed weights": {"target_modules": ["c_attn"], "fan_in_fan_out": True},
}


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a Qwen2 and a GPT-2, each with one weight for embeddings and output layer."""
    folder, sizes = tmp_path_factory.mktemp("tied"), {"vocab_size": 64, "tie_word_embeddings": True}
    configs = {
        "qwen2": Qwen2Config(
            **sizes,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        "gpt2": GPT2Config(**sizes, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    }
    for name, config in configs.items():
        torch.manual_seed(1)
        network = AutoModelForCausalLM.from_config(config).float()
        for value in network.parameters():
            torch.nn.init.normal_(value, std=0.3)
        network.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning:peft")
def test_a_merged_model_writes_what_the_model_with_its_adapter_writes(kind: str, tied: Path, tmp_path: Path) -> None:
    """An adapter of one of two layers that share a weight leaves the other alone."""
    base = tied / ("gpt2" if kind == "transposed weights" else "qwen2")
    loader = AutoModelForCausalLM
    network = get_peft_model(
        loader.from_pretrained(base), LoraConfig(r=2, lora_alpha=3, task_type="CAUSAL_LM", **KINDS[kind])
    )
    torch.manual_seed(2)
    for value in network.parameters():
        if value.requires_grad:
            value.data += 0.2 * torch.randn_like(value)
    ids = torch.arange(24)[None] * 7 % 64
    with torch.no_grad():
        wanted = network.eval()(ids).logits
    network.save_pretrained(tmp_path / "adapter")
    check_adapter(tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merge(base, tmp_path / "adapter", tmp_path / "merged", "0" * 64)
    with torch.no_grad():
        logits = loader.from_pretrained(tmp_path / "merged").eval()(ids).logits
    assert torch.allclose(logits, wanted, atol=1e-4)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adapter_that_no_weights_can_hold_is_refused(tied: Path, tmp_path: Path) -> None:
    """Biases of its own for layers that have none."""
    network = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tied / "qwen2"),
        LoraConfig(r=2, task_type="CAUSAL_LM", target_modules=["o_proj"], lora_bias=True),
    )
    network.save_pretrained(tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    with pytest.raises(ModelError, match=r"does not fit its model .*the base layer has no bias"):
        merge(tied / "qwen2", tmp_path / "adapter", tmp_path / "merged", "0" * 64)
