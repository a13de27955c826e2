"""An evaluation's gaps are chosen by rule, the same every time, each with its true answer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from codespec_lab.corpus.documents import Document, write_documents
from codespec_lab.corpus.gaps import (
    BLOCK_LINES,
    PREFIX_CHARS,
    SUFFIX_CHARS,
    Excerpt,
    Gap,
    block_gaps,
    excerpt_of,
    line_gaps,
    spread,
    task_gaps,
)
from codespec_lab.corpus.held_out import LIBRARY, Task, by_row, read_held_out, read_tasks
from hypothesis import given
from hypothesis import strategies as st

from codespec.errors import TrainingError

LONG = st.lists(st.integers(0, 300), max_size=30).map(lambda sizes: "\n".join("a" * size for size in sizes))
LINES = st.lists(
    st.sampled_from(["", "x = f(1, 2)", "    return g(x)", "    if a == b:", "        c[0] = d(e)", "# no"])
)


@given(LINES.map(lambda lines: "\n".join(lines * 3)), st.integers(0, 3), st.integers(0, 3))
def test_a_gap_is_cut_out_of_its_document(text: str, seed: int, turn: int) -> None:
    document = Document("p", "a.py", "python", text)
    for find in (line_gaps(seed), block_gaps(seed)):
        gap = find(document, turn)
        if gap is None:
            continue
        assert gap.before + gap.answer + gap.behind == text and gap.answer.strip()
        assert gap.before.endswith(gap.prefix) and gap.behind.startswith(gap.suffix)
        assert gap.suffix == "" or gap.suffix.startswith("\n")
        assert gap == find(document, turn)
    block = block_gaps(seed)(document, turn)
    if block is not None:
        lines = (block.prefix.rpartition("\n")[2] + block.answer).split("\n")
        depth = len(lines[0]) - len(lines[0].lstrip())
        assert len(lines) in BLOCK_LINES and 0 < depth <= min(len(line) - len(line.lstrip()) for line in lines)


@pytest.mark.parametrize("kind", [line_gaps, block_gaps])
def test_gaps_are_spread_and_moved_by_the_seed(kind: type, documents: list[Document]) -> None:
    gaps = spread(documents, 30, kind(0))
    assert len(gaps) == len(set(gaps)) == 30
    assert len({gap.path for gap in gaps}) > len(documents) / 2
    assert gaps == spread(documents, 30, kind(0)) != spread(documents, 30, kind(1))
    texts = {document.path: document.text for document in documents}
    assert all(gap.prefix + gap.answer + gap.suffix in texts[gap.path] for gap in gaps)


def test_line_gaps_begin_lines_and_stand_inside_them(documents: list[Document]) -> None:
    gaps = spread(documents, 40, line_gaps(0))
    begun = [bool(gap.prefix.rpartition("\n")[2].strip()) for gap in gaps]
    assert 24 < sum(begun) < 40
    assert not any("\n" in gap.answer for gap in gaps)


def test_excerpts_are_pieces_of_different_files(documents: list[Document]) -> None:
    excerpts = spread(documents, 6, excerpt_of)
    assert len(excerpts) == 6
    for excerpt in excerpts:
        assert any(excerpt.lead + excerpt.body in document.text for document in documents)
        assert 150 <= len(excerpt.lead) < len(excerpt.body) + len(excerpt.lead) <= 1500


def test_too_little_text_gives_nothing() -> None:
    found: list[Excerpt | Gap] = []
    for find in (excerpt_of, line_gaps(0), block_gaps(0)):
        found += spread([Document("p", "a.py", "python", "x = 1\n")], 3, find)
        found += spread([], 3, find)
    assert found == []


def test_tasks_lose_one_line_each() -> None:
    tasks = [Task(f"T/{i}", "def f(a):\n", "    b = a + 1\n\n    return b\n") for i in range(20)]
    gaps = task_gaps(tasks, 0)
    assert all(gap.prefix + gap.answer + gap.suffix == tasks[0].prompt + tasks[0].solution for gap in gaps)
    assert {gap.answer for gap in gaps} == {"    b = a + 1", "    return b"}
    assert {gap.line for gap in gaps} == {2, 4}


def test_rows_are_languages_with_the_library_apart() -> None:
    documents = [
        Document(LIBRARY, "b.py", "python", "x"), Document("p", "z.py", "python", "x"),
        Document("p", "a.py", "python", "x"), Document("q", "a.go", "go", "x"),
    ]  # fmt: skip
    rows = by_row(documents)
    assert list(rows) == ["go", "python", LIBRARY]
    assert [document.path for document in rows["python"]] == ["a.py", "z.py"]


def test_without_projects_the_library_is_taken_and_that_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "held_out.jsonl.gz"
    for _ in range(2):
        held_out = read_held_out(file, named=False)
        assert list(held_out.rows) == [LIBRARY] and "standard library only" in held_out.note
        write_documents(file, [])  # the file of a corpus without held-out projects
    with pytest.raises(TrainingError, match="is empty"):
        read_held_out(file, named=True)
    write_documents(file, [Document("q", "a.go", "go", "package main\n")])
    found = read_held_out(file, named=False)
    assert list(found.rows) == ["go", LIBRARY] and not found.note and len(found.digests["projects"]) == 64


def test_missing_and_damaged_projects_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "held_out.jsonl.gz"
    with pytest.raises(TrainingError, match="There is no corpus at"):
        read_held_out(file, named=True)
    file.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(TrainingError, match="is damaged"):
        read_held_out(file, named=False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty: give HumanEval's JSON lines"),
        (b'{"prompt": "def f():\\n"}\n', "line 1: not a JSON object with `prompt` and `canonical_solution`"),
        (b"[1]\n", "line 1: not a JSON object"),
        (b"\xff\xfe", "can't be read"),
    ],
)
def test_bad_prompts_are_one_sentence(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(TrainingError, match=words):
        read_tasks(file)
    with pytest.raises(TrainingError, match="can't be read"):
        read_tasks(tmp_path / "none.jsonl.gz")


def test_prompts_may_be_packed(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl.gz"
    row = {"task_id": "H/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n"}
    file.write_bytes(gzip.compress(json.dumps(row).encode()))
    assert read_tasks(file) == (Task("H/0", "def f():\n", "    return 1\n"),)


@given(LONG, LONG)
def test_a_prompt_is_whole_lines_around_its_gap(before: str, behind: str) -> None:
    gap = Gap("p", "a.py", "python", 1, before, "x", behind)
    assert before.endswith(gap.prefix) and len(gap.prefix) <= PREFIX_CHARS
    assert behind.startswith(gap.suffix) and len(gap.suffix) <= SUFFIX_CHARS
    left, right = before[: len(before) - len(gap.prefix)], behind[len(gap.suffix) :]
    assert not left or left.endswith("\n") or (len(gap.prefix) == PREFIX_CHARS and "\n" not in gap.prefix)
    assert not right or gap.suffix.endswith("\n") or len(gap.suffix) == SUFFIX_CHARS


@pytest.mark.parametrize(
    ("language", "head", "tail"),
    [
        ("python", 'def f(a):\n    """Say it.\n\n', '    """\n    return g(a) + 1\n'),
        ("java", "class A {\n" * 6 + "/*\n", "*/\n  int x = 1 + 2;\n"),
    ],
)
def test_prose_is_not_asked_for(language: str, head: str, tail: str) -> None:
    text = head + "    Words that only tell things.\n" * 40 + tail
    gaps = [line_gaps(seed)(Document("p", "a", language, text), 0) for seed in range(20)]
    assert all(gap is not None and not gap.answer.endswith("things.") for gap in gaps)
