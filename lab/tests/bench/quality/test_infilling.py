"""The published rules, samples of sites, and llama-server as a contestant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codespec_lab.bench.quality.scenario import engine_settings
from codespec_lab.bench.quality.sites import (
    SPANS,
    GapSite,
    cut,
    infilling_gaps,
    infilling_request,
    infilling_sites,
    prompt_ids,
    sample_sites,
    stops,
)
from codespec_lab.bench.statistics import wilson_interval
from codespec_lab.corpus.gaps import Gap
from codespec_lab.corpus.held_out import HeldOut, Task

from codespec.api.config import EngineConfig
from codespec.engine.engine import Engine
from codespec.text.fim_templates import FimMissing, find_template
from codespec.text.tokenizer import TextTokenizer
from lab.tests.bench.fake_llama import FakeLlama, llama
from lab.tests.bench.quality.test_run import pair, problems, short
from tests.cli.conftest import Command, Models, command, models, plain_environment

__all__ = ["command", "llama", "models", "plain_environment", "problems", "short"]


def site(kind: str, row: str = "humaneval", number: int = 0) -> GapSite:
    return GapSite(kind, row, Gap("p", f"T/{number}", "python", 2, "def f(x):\n", "    return x", "\n\nf(1)\n"))


def test_one_line_ends_with_it_and_all_else_at_an_end_token() -> None:
    written = "    return x\n    more\n"
    assert cut(site("single-line"), written) == cut(site("line"), written) == "    return x"
    whole = GapSite("single-line", "humaneval", Gap("p", "T", "python", 2, "", "    return 1\n", "f()\n"))
    assert cut(whole, written) == cut(whole, "    return x") == "    return x\n"
    assert cut(site("multi-line"), written) == cut(site("random-span"), written) == written
    assert (stops(site("single-line")), stops(site("random-span"))) == (("\n",), ())


def test_prompts_are_ids_in_the_targets_layout(models: Models) -> None:
    tokenizer = TextTokenizer.from_folder(models.target)
    template = find_template(tokenizer)
    assert not isinstance(template, FimMissing)
    ids = prompt_ids(tokenizer, site("single-line"), left_only=False, context=512)
    assert {template.prefix_id, template.suffix_id, template.middle_id} <= set(ids)
    left = prompt_ids(tokenizer, site("single-line"), left_only=True, context=512)
    assert tokenizer.decode_bytes(left) == b"def f(x):\n"
    request = infilling_request(site("single-line"), left_only=False)
    assert (request.shape, request.heal, request.stop, request.max_tokens) == ("raw", False, ("\n",), 64)
    engine = Engine.build(engine_settings(EngineConfig(threads=1), str(models.target)))
    written = engine.submit(request)[0].prompt_ids
    engine.close()
    assert written == prompt_ids(tokenizer, site("single-line"), left_only=False, context=engine.context)


def test_sites_are_those_that_the_paper_counts() -> None:
    task = Task("T/0", "def f(x):\n", "    if x:\n        x += 1\n\n    return x\n")
    single, multi, spans = (infilling_gaps(task, kind, 11) for kind in ("single-line", "multi-line", "random-span"))
    assert [gap.answer for gap in single] == ["    if x:\n", "        x += 1\n", "    return x\n"]
    assert len(multi) == 3 * 4 // 2 and set(single) < set(multi) and len(set(spans)) == SPANS == len(spans)
    assert {gap.before + gap.answer + gap.behind for gap in (*single, *multi, *spans)} == {task.prompt + task.solution}
    assert spans == infilling_gaps(task, "random-span", 11) != infilling_gaps(task, "random-span", 12)
    assert all(gap.answer.strip() for gap in spans)
    held_out = HeldOut({}, (task, Task("T/1", "def g():\n", "    return 1\n")))
    sites = infilling_sites(held_out, ["single-line", "multi-line"], seed=11)
    assert [one.kind for one in sites] == ["single-line"] * 4 + ["multi-line"] * 7
    assert len(infilling_sites(held_out, ["multi-line"], seed=11, limit=1)) == 6


def test_a_gap_at_the_end_is_filled_in_the_middle(models: Models) -> None:
    end = GapSite("multi-line", "humaneval", Gap("p", "T", "python", 2, "def f(x):\n", "    return x\n", ""))
    assert infilling_request(end, left_only=False).suffix == "\n"
    tokenizer = TextTokenizer.from_folder(models.target)
    template = find_template(tokenizer)
    assert not isinstance(template, FimMissing)
    assert template.middle_id in prompt_ids(tokenizer, end, left_only=False, context=512)


def test_a_sample_is_even_over_rows_and_the_seeds() -> None:
    sites = [site("single-line", number=n) for n in range(40)]
    sites += [site("line", row, n) for row in ("go", "python", "rust") for n in range(9)]
    chosen = sample_sites(sites, 7, 3)
    assert chosen == sample_sites(sites, 7, 3) != sample_sites(sites, 7, 4)
    assert [one.kind for one in chosen] == ["single-line"] * 7 + ["line"] * 7
    assert [sum(one.row == row for one in chosen) for row in ("go", "python", "rust")] == [3, 2, 2]
    assert sample_sites(sites, 100, 3) == sites


def test_wilson() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(59, 164) == pytest.approx((0.2903, 0.4358), abs=5e-4)


def test_llama_server_gets_the_same_prompts(
    models: Models, command: Command, problems: Path, short: None, llama: FakeLlama, tmp_path: Path
) -> None:
    out = tmp_path / "quality.json"
    words = [*pair(models), "--formats", "bfloat16", "--prompts", problems, "--kinds", "single-line", "--execute"]
    words += ["--shape", "infilling", "--llama-server", llama.url, "--sample", "2", "--json", out]
    done = command("bench", "quality", *words)
    assert done.code == 0, done.err
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [target["name"] for target in found["targets"]] == ["target float32", "target bfloat16", "llama.cpp"]
    assert [difference["other"] for difference in found["differences"]] == ["target bfloat16", "llama.cpp"]
    server = found["targets"][2]
    assert (server["dtype"], server["build"], server["parameters"]) == ("model-q4.gguf", "b1", 5_000_000)
    assert server["rows"]["single-line"]["humaneval"]["sites"] == 2 == len(llama.bodies)
    assert "llama.cpp (5.0 M, model-q4.gguf): both sides" in done.out and "HumanEval-Infilling's rules" in done.out
    body = llama.bodies[0]
    assert (body["temperature"], body["n_predict"], body["stop"]) == (0.0, 12, ["\n"]) and body["prompt"][0] >= 0
    tokenizer = TextTokenizer.from_folder(models.target)
    assert b"def add" in tokenizer.decode_bytes(body["prompt"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--llama-server", "URL"], "use --shape infilling with --llama-server"),
        (["--llama-server", "http://127.0.0.1:1", "--shape", "infilling"], "no llama-server answers"),
        (["--llama-server", "file:///x", "--shape", "infilling"], "is not an http address"),
        (["--formats", "float32"], "names a number format twice"),
        (["--formats", "int3"], "'int3' is not one of float32"),
        (["--sample", "0"], "must be a whole number of 1 or more"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], message: str, models: Models, command: Command, problems: Path, llama: FakeLlama
) -> None:
    known = {"URL": llama.url}
    given = [known.get(word, word) for word in words]
    command("bench", "quality", *pair(models), "--prompts", problems, *given).check_mistake(message)


def test_a_server_that_refuses_is_one_sentence(
    models: Models, command: Command, problems: Path, short: None, llama: FakeLlama
) -> None:
    llama.refuses = True
    words = [*pair(models), "--prompts", problems, "--kinds", "single-line", "--sample", "1", "--shape", "infilling"]
    done = command("bench", "quality", *words, "--llama-server", llama.url)
    assert done.code == 2 and done.err.splitlines()[-1] == (
        f"codespec: {llama.url} can't be used (llama-server refuses: the prompt is too long): "
        "check --llama-server and the log of that server."
    )
