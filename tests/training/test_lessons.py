"""What a target writes for its drafter: places, files, and rows that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from codespec.errors import TrainingError
from codespec.training.corpus import Document
from codespec.training.lessons import GROUP, Lesson, lesson_request, read_lessons, save_lessons, write_lessons
from codespec.training.samples import SampleStream, Spelling
from codespec.types import Completion, CompletionRequest, Stats

TAUGHT = Lesson("a.py", "def first(x):\n    return ", "grüße(x, 漢)", "\n\n\ndef second():\n    pass\n", ended=True)


def answer(requests: Sequence[CompletionRequest]) -> list[Completion]:
    """A target that repeats the last word, and says nothing where the seed divides by seven."""
    texts = ["" if request.seed % 7 == 0 else request.prefix[-5:] for request in requests]
    reasons = ["stop" if request.seed % 2 else "length" for request in requests]
    return [
        Completion(text, (), reason, Stats())  # type: ignore[arg-type]
        for text, reason in zip(texts, reasons, strict=True)
    ]


def holds(ids: list[int], part: list[int]) -> bool:
    """Whether the part stands in the ids."""
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))


def test_places_are_the_documents_own_text_and_depend_on_seed_and_number(documents: list[Document]) -> None:
    document = documents[0]
    asked = [lesson_request(document, number, seed=1) for number in range(200)]
    assert asked == [lesson_request(document, number, seed=1) for number in range(200)]
    assert asked != [lesson_request(document, number, seed=2) for number in range(200)]
    for request in asked:
        assert request.prefix in document.text and request.suffix in document.text
        assert not request.suffix or request.suffix.startswith("\n"), "the rest of the line is what is asked for"
    assert all(request.prefix or request.suffix for request in asked)
    assert 60 < sum(bool(request.suffix) for request in asked) < 140
    assert 20 < sum(request.temperature > 0 for request in asked) < 80


def test_lessons_keep_the_targets_words_and_leave_out_silence(documents: list[Document], tmp_path: Path) -> None:
    written = list(write_lessons(answer, documents, 40, seed=0))
    assert len(written) == 34 and all(lesson.middle == lesson.prefix[-5:] for lesson in written)
    assert {lesson.ended for lesson in written} == {True, False}
    path = tmp_path / "lessons.jsonl.gz"
    save_lessons(path, written)
    first = path.read_bytes()
    save_lessons(path, written)
    assert read_lessons(path) == written and path.read_bytes() == first


def test_rare_languages_are_not_forgotten() -> None:
    documents = [Document("p", f"{n}.py", "python", "x = 1\n" * 100) for n in range(100)]
    documents.append(Document("p", "a.go", "go", "var x = 1\n" * 100))
    written = write_lessons(answer, documents, 440, seed=0)
    assert 20 <= sum(lesson.path == "a.go" for lesson in written) <= 60, "one in eleven"


def test_a_wish_to_stop_keeps_what_is_written(documents: list[Document]) -> None:
    calls = iter([False, False, True])
    written = list(write_lessons(answer, documents, 10 * GROUP, seed=0, stop=lambda: next(calls)))
    assert GROUP < len(written) <= 2 * GROUP


@pytest.mark.parametrize("content", [b"", b"no gzip", None])
def test_files_that_cannot_be_read_say_what_to_run(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "lessons.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrainingError, match="codespec train lessons"):
        read_lessons(path)


def test_a_corpus_without_long_files_is_refused() -> None:
    with pytest.raises(TrainingError, match="long enough"):
        list(write_lessons(answer, [Document("p", "a.py", "python", "x = 1\n")], 10, seed=0))


def test_rows_hold_lessons_in_the_prompts_layouts(documents: list[Document], tokenizer: Tokenizer) -> None:
    """The middle whole, behind its prefix; in both orders, or plain without a suffix; an end where it ended."""
    spelling = Spelling(tokenizer)
    middle = spelling.inside(TAUGHT.middle)
    plain = Lesson("b.py", TAUGHT.prefix, TAUGHT.middle, "", ended=False)
    for lesson, orders in ((TAUGHT, 2), (plain, 1)):
        stream = SampleStream(documents, tokenizer, seed=0, lessons=[lesson])
        rows = [stream.row(index, 257) for index in range(60)]
        found = [row for row in rows if holds(row, middle)]
        assert len(found) > 20
        assert all(holds(row, [*middle, spelling.end]) == lesson.ended for row in found)
        kinds = {holds(row, [spelling.middle, *middle]) for row in found}
        assert len(kinds) == orders
        assert any(holds(row, [*spelling.start(lesson.prefix), *middle]) for row in found)


def test_a_long_lesson_loses_its_head_and_keeps_the_targets_words(
    documents: list[Document], tokenizer: Tokenizer, long_text: str
) -> None:
    spelling = Spelling(tokenizer)
    stream = SampleStream(
        documents, tokenizer, seed=0, lessons=[Lesson("a.py", long_text, "written_here(1)", "", True)]
    )
    rows = [stream.row(index, 129) for index in range(40)]
    assert all(len(row) == 129 for row in rows)
    assert sum(holds(row, spelling.inside("written_here(1)")) for row in rows) > 10
