"""Facts read from one model's files, and the facts that make a model unusable."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from codespec.errors import CodespecError, ModelError
from codespec.pair.facts import read_facts
from codespec.store.model_config import context_length, why_unsuitable
from codespec.store.resolve import resolve
from tests.pair.folders import toy_facts, write_model


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, ""),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, ""),
        ({"model_type": "llama"}, ""),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "does not write text"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder and a decoder"),
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "recurrent"),
        ({"architectures": ["XForCausalLM"], "layer_types": ["full_attention", "linear_attention"]}, "recurrent"),
        ({"architectures": ["GPTJForCausalLM"], "model_type": "gptj"}, "attention interface"),
        ({"architectures": ["XForConditionalGeneration"], "text_config": {"model_type": "qwen3_5_text"}}, ""),
        (
            {
                "architectures": ["XForCausalLM"],
                "layer_types": ["linear_attention"],
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 16,
                "linear_conv_kernel_dim": 4,
            },
            "",
        ),
        ({"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16}, "recurrent"),
        ({"model_type": "mamba2", "n_groups": 1, "state_size": 16}, "recurrent"),
        ({"model_type": "lfm2", "layer_types": ["full_attention"]}, ""),
        ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "recurrent"),
        ({"model_type": "rwkv"}, "recurrent"),
    ],
)
def test_unsuitable_architectures_are_told(config: dict[str, object], reason: str) -> None:
    fault = why_unsuitable(config)
    assert reason in fault.what if fault else not reason


def test_context_length_has_many_names() -> None:
    assert context_length({"n_positions": 1024}) == 1024
    assert context_length({"text_config": {"max_position_embeddings": 4096}}) == 4096
    assert context_length({}) is None


def test_the_facts_of_a_folder(tmp_path: Path) -> None:
    facts = toy_facts(tmp_path, "gpt2", width=5)
    assert (facts.weights.parameters, facts.weights.dtype, facts.context) == (75, "F32", 2048)
    assert facts.reasons == () and facts.tokenizer is not None


@pytest.mark.parametrize("kind", ["wordpiece", "nfkc", "drops-spaces"])
def test_a_lossy_tokenizer_is_a_finding(kind: str, tmp_path: Path) -> None:
    facts = toy_facts(tmp_path, kind)
    assert facts.tokenizer is None and len(facts.reasons) == 1


def test_a_tokenizer_larger_than_the_embedding_is_a_finding(tmp_path: Path) -> None:
    assert "1000 rows" in toy_facts(tmp_path, "gpt2", vocab_size=1000).reasons[0].sentence
    assert toy_facts(tmp_path, "gpt2", vocab_size=5000).reasons == ()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "gpt2")
    (folder / name).unlink()
    with pytest.raises(ModelError, match=r"has no .*: "):
        read_facts(resolve(str(folder)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "gpt2")
    (folder / name).write_text("{")
    with pytest.raises(CodespecError, match="cannot be read as JSON: fetch the model again"):
        read_facts(resolve(str(folder)))


def test_a_hub_id_is_fetched_into_the_hubs_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def snapshot(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve("owner/model").folder() == tmp_path
    texts = ["*.json", "*.jinja", "merges.txt", "*.model"]
    assert asked == [("owner/model", [*texts, "model*.safetensors", "adapter_model.safetensors"])]


def test_a_hub_id_that_is_not_reachable_is_one_sentence() -> None:
    """conftest.py disables the network."""
    with pytest.raises(ModelError, match=r"hub does not provide it \(.*\): check the name and the network") as raised:
        resolve("nobody/nothing").folder()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["./nowhere", "nowhere", "a/b/c", "bad owner/x"])
def test_a_missing_folder_is_never_asked_of_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ModelError, match="There is no model folder"):
        resolve(name).folder()
