"""The pair report: each line for pairs with a known answer, the verdict, and valid suggested settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from codespec.contract.engine_config import EngineConfig
from codespec.pair.facts import read_facts
from codespec.pair.report import PairReport, check_pair, recommend, toml
from codespec.pair.retokenization import PerfectDrafts
from codespec.pair.rows import Pair, Row
from codespec.store.choice import resolve_engine
from codespec.store.resolve import resolve
from tests.pair.folders import TEXT, toy_facts, toy_sample, write_model

KEYS = [
    "output", "parameters", "size_ratio", "stored_as", "layers", "rollback", "mode", "context", "vocabulary",
    "tokenizer", "normalizer", "byte_fallback", "dummy_prefix", "trims_offsets", "tokenizer_notes", "special_tokens",
    "bos", "eos", "fim", "tokenizer_class", "equal_ids", "shared_vocabulary", "single_token_overlap",
    "bytes_per_token", "oracle_4", "oracle_8", "oracle_16",
]  # fmt: skip


def report_on(folder: Path, target: str, drafter: str, **drafter_settings: Any) -> PairReport:
    settings = {"width": 3, **drafter_settings}
    return check_pair(
        toy_facts(folder / "target", target), toy_facts(folder / "drafter", drafter, **settings), toy_sample()
    )


def row(report: PairReport, key: str) -> Row:
    return next(row for row in report.rows if row.key == key)


def test_a_pair_with_one_vocabulary_passes_ids_through(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "gpt2")
    assert (report.verdict, report.problem) == ("works", None)
    assert [row.key for row in report.rows] == KEYS
    assert all(row.criterion in (True, None) for row in report.rows)
    assert row(report, "shared_vocabulary").drafter is True and row(report, "equal_ids").drafter == 1.0
    assert [row(report, f"oracle_{n}").drafter for n in (4, 8, 16)] == [1.0, 1.0, 1.0]
    assert "pass straight through" in toml(report.settings)


def test_a_pair_with_two_vocabularies_is_measured_not_refused(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "llama2", max_position_embeddings=512)
    assert report.verdict == "works, with notes"
    missed = {row.key for row in report.rows if row.criterion is False}
    assert missed == {"context", "equal_ids"}
    assert row(report, "context").finding == "note" and row(report, "equal_ids").finding == "ok"
    assert (row(report, "dummy_prefix").target, row(report, "dummy_prefix").drafter) == (False, True)
    assert (row(report, "byte_fallback").target, row(report, "byte_fallback").drafter) == (False, True)
    assert (row(report, "tokenizer").target, row(report, "tokenizer").drafter) == ("byte-level", "sentencepiece")
    assert row(report, "trims_offsets").target is True and row(report, "bos").drafter == ("<s>",)
    assert row(report, "eos").target == ("<|endoftext|>",)
    assert row(report, "size_ratio").drafter == pytest.approx(64 / 9)
    ratio = row(report, "bytes_per_token")
    assert isinstance(ratio.target, float) and isinstance(ratio.drafter, float) and 2 < ratio.target < 4


def test_a_drafter_that_is_not_smaller_is_a_note_and_left_out(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "llama2", width=9)
    assert report.verdict == "works, with notes" and row(report, "parameters").finding == "note"
    assert tomllib.loads(toml(report.settings))["drafter"] == "none"
    assert tomllib.loads(toml(report.settings))["proposers"] == "suffix"


def test_a_side_without_fill_in_the_middle_is_a_note(tmp_path: Path) -> None:
    mine, folder = toy_facts(tmp_path / "target", "gpt2"), write_model(tmp_path / "drafter", "qwen")
    assert row(check_pair(mine, read_facts(resolve(str(folder))), toy_sample()), "fim").finding == "ok"
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("fim_suffix", "sfx"))
    drafter = read_facts(resolve(str(folder)))
    fim = row(check_pair(mine, drafter, toy_sample()), "fim")
    assert (fim.target, fim.drafter, fim.finding) == ("codespec (psm)", "none", "note")
    assert "lacks <|fim_suffix|>" in fim.why and "the drafter does not see" in fim.why
    assert "only the text before the cursor" in row(check_pair(drafter, mine, toy_sample()), "fim").why


@pytest.mark.parametrize("kind", ["wordpiece", "nfkc"])
@pytest.mark.parametrize("side", ["target", "drafter"])
def test_a_lossy_tokenizer_cannot_work(kind: str, side: str, tmp_path: Path) -> None:
    kinds = {"target": "gpt2", "drafter": "llama2", side: kind}
    report = report_on(tmp_path, kinds["target"], kinds["drafter"])
    assert report.verdict == "can't work" and report.problem and report.problem.what.startswith(f"The {side} ")
    assert row(report, "tokenizer").finding == "problem" and report.perfect_drafts == ()
    settings = tomllib.loads(toml(report.settings))
    assert settings == {} if side == "target" else settings["drafter"] == "none"


RECURRENT = {"layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 8}
RECURRENT |= {"linear_key_head_dim": 16, "linear_conv_kernel_dim": 4}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "mode", "device", "found", "why"),
    [
        ({}, "exact", "cpu", ("exact", "ok"), "no other row changes a bit"),
        ({}, "fast", "cpu", ("fast", "ok"), "mode is fast"),
        (EXPERTS | RECURRENT, "exact", "cpu", ("exact", "ok"), "no other row changes a bit"),
        (EXPERTS, "exact", "cuda:1", ("fast", "note"), "experts run on a GPU in fast mode only"),
        (RECURRENT, "exact", "cuda", ("", "note"), "recurrent layers run on a CPU: set device cpu"),
    ],
)
def test_the_mode_of_each_model(
    config: dict[str, Any], mode: str, device: str, found: tuple[str, str], why: str, tmp_path: Path
) -> None:
    target, drafter = toy_facts(tmp_path / "t", "gpt2", **config), toy_facts(tmp_path / "d", "gpt2", width=3)
    told = row(check_pair(target, drafter, toy_sample(TEXT[:2000]), mode, device), "mode")
    assert (told.target, told.finding) == found and why in told.why and told.drafter == "fast"


def test_what_a_hybrid_keeps_and_what_a_rollback_costs(tmp_path: Path) -> None:
    target, drafter = toy_facts(tmp_path / "t", "gpt2", **RECURRENT), toy_facts(tmp_path / "d", "gpt2", width=3)
    report = check_pair(target, drafter, toy_sample(TEXT[:2000]))
    assert row(report, "layers").target == "1 attention, 1 recurrent"
    assert row(report, "rollback").target == "a length and replayed rows"


def test_an_architecture_that_writes_no_text_cannot_work(tmp_path: Path) -> None:
    report = report_on(tmp_path, "gpt2", "llama2", architectures=["BertModel"])
    assert report.problem
    assert "BertModel does not write text: choose a causal language model." in report.problem.sentence
    assert row(report, "output").criterion is False


def test_json_keeps_its_keys(tmp_path: Path) -> None:
    value = json.loads(json.dumps(report_on(tmp_path, "llama3", "unigram").as_dict()))
    assert list(value) == [
        "verdict", "problem", "target", "drafter", "shared_vocabulary", "rows", "oracle", "usual_criteria", "files",
        "settings", "toml",
    ]  # fmt: skip
    for item in value["rows"]:
        assert list(item) == ["key", "label", "target", "drafter", "verdict", "why", "unit", "criterion"]
        assert item["verdict"] in ("ok", "note", "problem")
    assert [item["tokens"] for item in value["oracle"]] == [4, 8, 16]
    for item in value["oracle"]:
        assert item["accepted"] <= item["drafted"] and item["survival"] == item["accepted"] / item["drafted"]
    assert sorted(value["usual_criteria"]) == ["context", "equal_ids", "output", "parameters", "tokenizer_class"]
    assert value["files"]["count"] == 1 and value["problem"] is None


def perfect_drafts(*shares: float) -> list[PerfectDrafts]:
    return [
        PerfectDrafts(tokens, 100, 10_000, round(10_000 * share))
        for tokens, share in zip((4, 8, 16), shares, strict=True)
    ]


def test_settings_follow_what_was_measured(tmp_path: Path) -> None:
    pair = Pair(toy_facts(tmp_path / "t", "gpt2"), toy_facts(tmp_path / "d", "llama2", width=3))

    def advice(*shares: float) -> dict[str, Any]:
        settings = recommend(pair, perfect_drafts(*shares))
        values = tomllib.loads(toml(settings))
        resolve_engine(values)  # every key and value is valid in EngineConfig
        return values

    assert advice(0.75, 0.85, 0.92)["draft_tokens"] == EngineConfig().draft_tokens
    assert advice(0.95, 0.97, 0.99)["proposers"] == "chain"
    assert advice(0.1, 0.1, 0.1)["drafter"] == "none"
    assert advice(0.95, 0.97, 0.99)["dtype"] == "float32"
