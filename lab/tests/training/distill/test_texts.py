"""Distillation data: positions, files and training rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill.places import Place, choose_places, deal, request_at
from codespec_lab.training.distill.texts import (
    GROUP,
    DistillationExample,
    generate_examples,
    read_examples,
    save_examples,
)
from codespec_lab.training.samples import FimTokenizer, SampleStream
from tokenizers import Tokenizer

from codespec.api.types import Completion, CompletionRequest, Stats
from codespec.errors import TrainingError

EXAMPLE = DistillationExample(
    "a.py", "def first(x):\n    return ", "grüße(x, 漢)", "\n\n\ndef second():\n    pass\n", ended=True
)


def answer(requests: Sequence[CompletionRequest]) -> list[Completion]:
    """A target that repeats the last word, and writes nothing if the seed is divisible by seven."""
    texts = ["" if request.seed % 7 == 0 else request.prefix[-5:] for request in requests]
    reasons = ["stop" if request.seed % 2 else "length" for request in requests]
    return [
        Completion(text, (), reason, Stats())  # type: ignore[arg-type]
        for text, reason in zip(texts, reasons, strict=True)
    ]


def holds(ids: list[int], part: list[int]) -> bool:
    """Return whether the ids contain the part."""
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))


def written(documents: Sequence[Document], count: int) -> list[DistillationExample]:
    places = choose_places(documents, count, seed=0)
    return [example for group in generate_examples(answer, places, seed=0) for example in group]


def test_places_are_the_documents_own_text_and_depend_on_seed_and_number(documents: list[Document]) -> None:
    document = documents[0]
    places = choose_places([document], 200, seed=1)
    assert places == choose_places([document], 200, seed=1) != choose_places([document], 200, seed=2)
    for place in places:
        assert place.prefix in document.text and place.suffix in document.text
        assert not place.suffix or place.suffix.startswith("\n"), "the middle is the rest of the line"
        assert place.prefix + place.middle + place.suffix in document.text
    assert all(place.prefix or place.suffix for place in places)
    assert 60 < sum(bool(place.suffix) for place in places) < 140
    assert not any(place.suffix for place in choose_places([document], 50, seed=1, fill_in=0.0))
    requests = [request_at(place, number, seed=1) for number, place in enumerate(places)]
    assert 20 < sum(request.temperature > 0 for request in requests) < 80


def test_rare_contexts_are_not_forgotten() -> None:
    items = list(range(1000))
    keys = ["rare" if item % 10 == 0 else "usual" for item in items]
    dealt = deal(items, keys, 100, np.random.default_rng(0))
    assert len(set(dealt)) == 100 and 15 <= sum(item % 10 == 0 for item in dealt) <= 35, "a quarter, not a tenth"
    assert sorted(deal(items, keys, 2000, np.random.default_rng(0))) == items


def test_examples_keep_the_targets_words_and_leave_out_silence(documents: list[Document], tmp_path: Path) -> None:
    found = written(documents, 40)
    assert len(found) == 34 and all(example.middle == example.prefix[-5:] for example in found)
    assert {example.ended for example in found} == {True, False}
    path = tmp_path / "distill_data.jsonl.gz"
    save_examples(path, found)
    first = path.read_bytes()
    save_examples(path, found)
    assert read_examples(path) == found and path.read_bytes() == first


def test_rare_languages_are_not_forgotten() -> None:
    documents = [Document("p", f"{n}.py", "python", "x = 1\n" * 100) for n in range(100)]
    documents.append(Document("p", "a.go", "go", "var x = 1\n" * 100))
    places = choose_places(documents, 440, seed=0)
    assert 20 <= sum(place.path == "a.go" for place in places) <= 90, "about one in eleven"


def test_a_wish_to_stop_keeps_what_is_written() -> None:
    places = [Place("a.py", "def f(x):\n", "", "    pass\n")] * (10 * GROUP)
    calls = iter([False, False, True])
    assert len(list(generate_examples(answer, places, seed=0, stop=lambda: next(calls)))) == 2


@pytest.mark.parametrize("content", [b"", b"no gzip", None])
def test_files_that_cannot_be_read_say_what_to_run(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "distill_data.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrainingError, match="codespec train distill-data"):
        read_examples(path)


def test_a_corpus_without_long_files_is_refused() -> None:
    with pytest.raises(TrainingError, match="long enough"):
        choose_places([Document("p", "a.py", "python", "x = 1\n")], 10, seed=0)


def test_rows_hold_examples_in_the_prompts_layouts(documents: list[Document], tokenizer: Tokenizer) -> None:
    """Rows contain the whole middle after its prefix, in both orders or plain, and an end token if it ended."""
    fim = FimTokenizer(tokenizer)
    middle = fim.encode_inside(EXAMPLE.middle)
    plain = DistillationExample("b.py", EXAMPLE.prefix, EXAMPLE.middle, "", ended=False)
    for example, orders in ((EXAMPLE, 2), (plain, 1)):
        stream = SampleStream(documents, tokenizer, seed=0, distilled=[example])
        rows = [stream.row(index, 257) for index in range(60)]
        found = [row for row in rows if holds(row, middle)]
        assert len(found) > 20
        assert all(holds(row, [*middle, fim.end]) == example.ended for row in found)
        kinds = {holds(row, [fim.middle, *middle]) for row in found}
        assert len(kinds) == orders
        assert any(holds(row, [*fim.encode(example.prefix), *middle]) for row in found)


def test_a_long_example_loses_its_head_and_keeps_the_targets_words(
    documents: list[Document], tokenizer: Tokenizer, long_text: str
) -> None:
    fim = FimTokenizer(tokenizer)
    stream = SampleStream(
        documents, tokenizer, seed=0, distilled=[DistillationExample("a.py", long_text, "written_here(1)", "", True)]
    )
    rows = [stream.row(index, 129) for index in range(40)]
    assert all(len(row) == 129 for row in rows)
    assert sum(holds(row, fim.encode_inside("written_here(1)")) for row in rows) > 10
