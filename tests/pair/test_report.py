"""Facts read from one model's files. The pair report: its findings for pairs with a known answer, and the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from codespec.errors import CodespecError, Finding, ModelError
from codespec.pair import PairReport, check_pair, read_facts
from codespec.store.model_folder import context_length, why_unsuitable
from codespec.store.resolve import resolve
from tests.pair.folders import TEXT, toy_facts, toy_sample, write_model


def report_on(folder: Path, target: str, drafter: str, **drafter_settings: Any) -> PairReport:
    settings = {"width": 3, **drafter_settings}
    return check_pair(
        toy_facts(folder / "target", target), toy_facts(folder / "drafter", drafter, **settings), toy_sample()
    )


def row(report: PairReport, name: str) -> Finding:
    return next(finding for finding in report.findings if finding.name == name)


def test_a_pair_with_one_vocabulary_passes_ids_through(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "gpt2")
    assert (report.verdict, report.problem) == ("works", None)
    names = ["target", "drafter", "size", "fill-in", "tokens", "drafts"]
    assert [finding.name for finding in report.findings] == names
    assert row(report, "drafts").message == "100.0, 100.0, 100.0 % of perfect drafts of 4, 8, 16 tokens survive"
    assert "ids pass straight through" in row(report, "tokens").message
    assert row(report, "size").message == "the target has 7.1 times the drafter's parameters"


def test_a_pair_with_two_vocabularies_is_measured_not_refused(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "llama2")
    assert report.verdict == "works"
    assert "ids pass" not in row(report, "tokens").message
    assert all(0.5 < (drafts.survival or 0) < 1 for drafts in report.perfect_drafts)


def test_a_drafter_that_is_not_smaller_is_a_warning(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "llama2", width=9)
    assert row(report, "size").state == "warning" and row(report, "size").fix


def test_a_side_without_fill_in_the_middle_is_a_warning(tmp_path: Path) -> None:
    mine, folder = toy_facts(tmp_path / "target", "gpt2"), write_model(tmp_path / "drafter", "qwen")
    assert row(check_pair(mine, read_facts(resolve(str(folder))), toy_sample()), "fill-in").state == "ok"
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("fim_suffix", "sfx"))
    drafter = read_facts(resolve(str(folder)))
    found = row(check_pair(mine, drafter, toy_sample()), "drafter-fill")
    assert found.state == "warning" and "lacks <|fim_suffix|>" in found.message
    assert "is not used (" in row(check_pair(drafter, mine, toy_sample()), "fill-in").message


@pytest.mark.parametrize("kind", ["wordpiece", "nfkc"])
@pytest.mark.parametrize("side", ["target", "drafter"])
def test_a_lossy_tokenizer_cannot_work(kind: str, side: str, tmp_path: Path) -> None:
    kinds = {"target": "gpt2", "drafter": "llama2", side: kind}
    report = report_on(tmp_path, kinds["target"], kinds["drafter"])
    assert report.verdict == "can't work" and report.problem and report.problem.what.startswith(f"The {side} ")
    assert row(report, side).state == "failed" and report.perfect_drafts == ()


RECURRENT = {"layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 8}
RECURRENT |= {"linear_key_head_dim": 16, "linear_conv_kernel_dim": 4}


def test_what_a_hybrid_keeps_and_what_a_rollback_costs(tmp_path: Path) -> None:
    target, drafter = toy_facts(tmp_path / "t", "gpt2", **RECURRENT), toy_facts(tmp_path / "d", "gpt2", width=3)
    message = row(check_pair(target, drafter, toy_sample(TEXT[:2000])), "target").message
    assert "layers: 1 attention, 1 recurrent, a rollback costs a length and replayed rows" in message


def test_an_architecture_that_writes_no_text_cannot_work(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "llama2", architectures=["BertModel"])
    assert report.problem
    assert "BertModel does not generate text: choose a causal language model." in report.problem.sentence


def test_too_little_text_is_a_warning(tmp_path: Path) -> None:
    report = check_pair(toy_facts(tmp_path / "t", "gpt2"), toy_facts(tmp_path / "d", "gpt2", width=3), toy_sample("x"))
    assert row(report, "drafts").message == "the text is too short to measure perfect drafts"


def test_json_keeps_its_keys(tmp_path: Path) -> None:
    value = json.loads(json.dumps(report_on(tmp_path, "llama3", "unigram").as_dict()))
    assert list(value) == ["ok", "checks", "problem", "perfect_drafts", "files"]
    for item in value["checks"]:
        assert list(item) == ["name", "state", "message", "fix"] and bool(item["fix"]) == (item["state"] != "ok")
    assert [item["tokens"] for item in value["perfect_drafts"]] == [4, 8, 16]
    for item in value["perfect_drafts"]:
        assert item["survival"] == item["accepted"] / item["drafted"]
    assert value["problem"] is None and value["ok"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, ""),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, ""),
        ({"model_type": "llama"}, ""),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "does not generate text"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder-decoder model"),
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


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "gpt2")
    (folder / name).unlink()
    with pytest.raises(ModelError, match=r"has no .*: "):
        read_facts(resolve(str(folder)))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_broken_file_is_one_sentence(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "gpt2")
    (folder / name).write_text("{")
    try:
        (reason,) = read_facts(resolve(str(folder))).reasons
    except CodespecError as error:
        reason = error.fault
    assert "is not valid JSON: download the model again" in reason.sentence


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
    with pytest.raises(ModelError, match=r"downloaded from the hub \(.*\): check the name and the network") as raised:
        resolve("nobody/nothing").folder()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["./nowhere", "nowhere", "a/b/c", "bad owner/x"])
def test_a_missing_folder_is_never_asked_of_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ModelError, match="There is no model folder"):
        resolve(name).folder()
