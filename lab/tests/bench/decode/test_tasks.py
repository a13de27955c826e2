"""The choice of prompts, and their division into workloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codespec_lab.bench.decode.contest import (
    FILLS,
    Cell,
    Task,
    count_kinds,
    make_tasks,
)
from codespec_lab.bench.sites import PROJECTS, PROMPTS, Site, digest, mixed_sites
from codespec_lab.corpus.documents import Document, write_documents
from hypothesis import given
from hypothesis import strategies as st

from codespec.engine.admission import Admission
from codespec.errors import ConfigError
from tests.pairs import model


@given(st.integers(0, 120), st.integers(1, 60), st.sampled_from((1, 4, 8, 16)))
def test_workloads_are_of_one_size_and_enough_to_fill_the_batch(there: int, limit: int, concurrency: int) -> None:
    tasks = [Task(number, Site("x"), (1, 2, 3)) for number in range(1, there + 1)]
    found = Cell("sampled", concurrency).workloads(tasks, limit, 8, frozenset({1}))
    size = concurrency if concurrency == 1 else FILLS * concurrency
    assert {len(work.tasks) for work in found} <= {size}
    assert len(found) == min(there, max(limit, size)) // size
    taken = [task.number for work in found for task in work.tasks]
    assert taken == list(range(1, len(taken) + 1))
    assert all(work.count == concurrency and work.temperature > 0 and work.ends == {1} for work in found)


def test_sites_are_the_same_for_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec_lab.corpus.held_out.held_out_files", list)
    file, held_out = tmp_path / "prompts.jsonl", tmp_path / "held_out.jsonl.gz"
    lines = [{"prompt": f"x = {n}", "path": "a.py", "suffix": "y" if n % 2 else ""} for n in range(12)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code = "".join(f"def area{i}(width):\n    result = width * {i}\n    return result\n\n\n" for i in range(20))
    write_documents(held_out, [Document("disc", f"disc{n}.py", "python", code) for n in range(3)])
    sites, note = mixed_sites(None, file)
    again, _ = mixed_sites(None, file)
    assert digest(sites) == digest(again) and note == "" and len(sites) == 12
    assert {(site.prefix, site.suffix) for site in sites} == {(line["prompt"], line["suffix"]) for line in lines}
    assert [site.prefix for site in sites] != [line["prompt"] for line in lines]  # shuffled
    assert digest([*sites, Site("")]) != digest(sites)

    both, _ = mixed_sites(held_out, file)
    assert [site.kind for site in both[:4]] == [PROMPTS, PROJECTS] * 2
    assert [site for site in both if site.kind == PROMPTS] == sites[: len(both) // 2]
    alone, _ = mixed_sites(held_out, None)
    assert {site.kind for site in alone} == {PROJECTS}
    admission = Admission(model("llama", "bytes"), 512)
    tasks, ends = make_tasks(admission, both[:6], 8)
    assert ends >= admission.target.tokenizer.model_eos_ids
    assert count_kinds(tasks) == {PROMPTS: 3, PROJECTS: 3} and [task.number for task in tasks] == list(range(6))
    assert all(task.ids for task in tasks)
    file.write_text("")
    with pytest.raises(ConfigError):
        mixed_sites(None, file)
