"""Tokenizer recipes, fill-in-the-middle layouts and the stream of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from codespec_lab.corpus.documents import Document
from codespec_lab.training.distill.places import Cut, cut_anywhere
from codespec_lab.training.llama import IGNORED
from codespec_lab.training.samples import FimTokenizer, ProjectIndex, SampleStream, fim_ids
from codespec_lab.training.tokenizer_training import SPECIALS, save_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

TEXT = "def grüße(self, x):\n        return x.name(1234)  # 漢字\n\n\tif a:\r\n    pass\n"
FUSS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def spelled(tokenizer: Tokenizer, ids: list[int], *, start: bool) -> str:
    """Return the text of ids; the dummy space is dropped only at the start of a piece."""
    if start or not ids:
        return str(tokenizer.decode(ids, skip_special_tokens=False))
    anchor = FimTokenizer(tokenizer).encode("\n")
    return str(tokenizer.decode([*anchor, *ids], skip_special_tokens=False))[1:]


def split_at(ids: list[int], marks: Sequence[int]) -> list[list[int]]:
    """Return the parts between the marks, each of which must occur once, in this order, beginning with the first."""
    places = [ids.index(mark) for mark in marks]
    assert places[0] == 0 and places == sorted(places) and all(ids.count(mark) == 1 for mark in marks)
    return [ids[a + 1 : b] for a, b in pairwise([*places, len(ids)])]


def test_the_two_tokenizers_differ_and_lose_nothing(tokenizers: dict[str, Tokenizer]) -> None:
    target, drafter = tokenizers["target"], tokenizers["drafter"]
    for tokenizer in (target, drafter):
        assert tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False).ids) == TEXT
        assert [tokenizer.token_to_id(token) for token in SPECIALS] == list(range(len(SPECIALS)))
        assert tokenizer.get_vocab_size() == 512
    assert "ĊĠĠĠĠĠĠĠĠ" in target.encode("x:\n        y").tokens
    assert drafter.encode("def:\n        y").tokens == ["▁def", ":", "\n", "▁▁▁▁▁▁▁▁", "y"]
    assert "<0xE6>" in drafter.encode("漢").tokens


def test_transformers_reads_the_tokenizer_as_it_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, 2048)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(TEXT)["input_ids"] == tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert loaded.eos_token == "<|endoftext|>"
    assert loaded.decode(loaded(TEXT)["input_ids"]) == TEXT


def test_marker_like_source_text_stays_text(tokenizer: Tokenizer) -> None:
    fim = FimTokenizer(tokenizer)
    for ids in (fim.encode("a <|fim_middle|> b"), fim.encode_inside("a <|endoftext|> b")):
        assert not set(ids) & set(range(len(SPECIALS)))


@FUSS
@given(first=st.integers(0, len(TEXT)), second=st.integers(0, len(TEXT)), joint=st.booleans())
def test_both_layouts_give_their_text_back(tokenizer: Tokenizer, first: int, second: int, joint: bool) -> None:
    a, b = sorted((first, second))
    cut, fim = Cut(TEXT[:a], TEXT[a:b], TEXT[b:]), FimTokenizer(tokenizer)
    psm = fim_ids(cut, fim, 1000, order="psm", joint=joint)
    spm = fim_ids(cut, fim, 1000, order="spm", joint=joint)
    assert psm is not None and spm is not None
    prefix, suffix, middle, rest = split_at(psm, (fim.prefix, fim.suffix, fim.middle, fim.end))
    assert not rest
    assert (spelled(tokenizer, prefix, start=True), spelled(tokenizer, suffix, start=True)) == (
        cut.prefix,
        cut.suffix,
    )
    assert spelled(tokenizer, middle, start=False) == cut.middle
    empty, suffix, both, rest = split_at(spm, (fim.prefix, fim.suffix, fim.middle, fim.end))
    assert not empty and not rest
    assert spelled(tokenizer, suffix, start=True) == cut.suffix
    assert spelled(tokenizer, both, start=bool(cut.prefix) or joint) == cut.prefix + cut.middle


@FUSS
@given(cut=st.integers(0, 2000), room=st.integers(60, 400), psm=st.booleans())
def test_a_sample_fits_and_keeps_its_middle_and_the_text_next_to_it(
    tokenizer: Tokenizer, long_text: str, cut: int, room: int, psm: bool
) -> None:
    text, fim = long_text, FimTokenizer(tokenizer)
    whole = Cut(text[:cut], text[cut : cut + 30], text[cut + 30 :])
    ids = fim_ids(whole, fim, room, order="psm" if psm else "spm", joint=False)
    assert ids is not None and len(ids) <= room
    middle = fim.encode_inside(whole.middle)
    assert ids[-1 - len(middle) : -1] == middle
    after = ids[ids.index(fim.suffix) + 1 : ids.index(fim.middle)]
    assert after == fim.encode(whole.suffix)[: len(after)] and len(after) >= (room - 4 - len(middle)) // 4
    if not psm:
        before = ids[ids.index(fim.middle) + 1 : -1 - len(middle)]
        assert before == fim.encode(whole.prefix)[len(fim.encode(whole.prefix)) - len(before) :]


def test_a_middle_too_long_for_its_room_is_no_sample(tokenizer: Tokenizer) -> None:
    assert fim_ids(Cut("a", TEXT * 10, "b"), FimTokenizer(tokenizer), 60, order="psm", joint=False) is None


def test_cuts_end_lines_mostly_and_start_inside_words(long_text: str) -> None:
    rng, text = np.random.default_rng(0), long_text[:2000]
    cuts = [cut_anywhere(text, rng) for _ in range(400)]
    assert all(c.prefix + c.middle + c.suffix == text for c in cuts)
    assert sum(c.suffix.startswith("\n") or not c.suffix for c in cuts) >= 280
    assert sum(c.prefix[-1:].isalnum() and c.middle[:1].isalnum() for c in cuts) >= 100


def test_rows_depend_on_their_index_alone(documents: list[Document], tokenizer: Tokenizer) -> None:
    ordered = SampleStream(documents, tokenizer, seed=3)
    rows = [ordered.row(index, 65) for index in range(300)]
    late = SampleStream(documents, tokenizer, seed=3)
    assert [late.row(index, 65) for index in (299, 0, 150)] == [rows[299], rows[0], rows[150]]
    assert SampleStream(documents, tokenizer, seed=4).row(0, 65) != rows[0]


def test_a_batch_is_shifted_by_one_and_pads_are_not_learned(documents: list[Document], tokenizer: Tokenizer) -> None:
    stream, fim = SampleStream(documents, tokenizer, seed=0), FimTokenizer(tokenizer)
    ids, labels = stream.batch(0, 16, 64)
    assert ids.shape == labels.shape == (16, 64)
    assert (labels != fim.pad).all()
    known = labels[:, :-1] != IGNORED
    assert (ids[:, 1:][known] == labels[:, :-1][known]).all() and known.float().mean() > 0.8
    kinds = (ids == fim.prefix).any(1).float().mean()
    assert 0.1 < kinds < 0.95


def test_both_orders_occur(documents: list[Document], tokenizer: Tokenizer) -> None:
    stream, fim = SampleStream(documents, tokenizer, seed=0), FimTokenizer(tokenizer)
    orders = [b == fim.suffix for i in range(60) for a, b in pairwise(stream.row(i, 129)) if a == fim.prefix]
    assert 10 < sum(orders) < len(orders) - 10


def test_another_file_of_the_project_stands_before_a_share_of_the_samples(tokenizers: dict[str, Tokenizer]) -> None:
    """The layout is the prompt's: separator, path, text, separator, path, sample, all of one project."""
    tokenizer = tokenizers["target"]
    fim = FimTokenizer(tokenizer)
    body = "".join(f"value_{i} = compute({i})\n" for i in range(60))
    documents = [
        Document(package, f"{package}/{folder}/{name}.py", "python", f"# {package}\n{body}")
        for package in ("one", "two")
        for folder in ("a", "b")
        for name in ("x", "y")
    ]
    stream = SampleStream(documents, tokenizer, seed=3)
    rows = [stream.row(index, 600) for index in range(120)]
    with_other = 0
    for ids in rows:
        heads = [i for i, token in enumerate(ids) if token == fim.file]
        paths = [tokenizer.decode(ids[i + 1 : i + 40]).partition("\n")[0] for i in heads]
        assert all(path in {d.path for d in documents} for path in paths)
        pairs = [(a, b) for a, b in pairwise(heads) if fim.end not in ids[a:b] and fim.middle not in ids[a:b]]
        with_other += bool(pairs)
    assert 0.1 < with_other / len(rows) < 0.6


def test_a_project_chooses_another_file_of_its_own(documents: Sequence[Document]) -> None:
    mixed = [*documents, Document("alone", "only.py", "python", "x")]
    project, rng = ProjectIndex(mixed), np.random.default_rng(0)
    chosen = [project.choose(0, rng) for _ in range(200)]
    assert {None if i is None else mixed[i].package for i in chosen} <= {None, "stdlib"} and 0 not in chosen
    assert project.choose(len(mixed) - 1, rng) is None
