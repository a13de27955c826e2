"""dtype native in the engine: the same text with and without speculation and with any number of threads."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from codespec.errors import ModelError
from codespec.models.language_model import LanguageModel
from codespec.models.loader import load_model
from codespec.models.rows import Rows
from codespec.startup.calls import choose_calls
from tests.models.gguf.files import write_model
from tests.pairs import Garbage, Mixed, Oracle, build, model, run, texts, total, varied_requests

FOLDER = TemporaryDirectory(prefix="codespec-native-")  # for the whole test run


@cache
def file(case: str, form: str) -> Path:
    return write_model(Path(FOLDER.name) / f"{case}-{form}.gguf", case, form)


def native(case: str = "qwen2", form: str = "Q8_0", exact: bool = True) -> LanguageModel:
    return load_model(str(file(case, form)), dtype="native", exact=exact)


@pytest.mark.parametrize(("case", "form"), [("qwen2", "Q8_0"), ("llama", "Q5_0"), ("phi3", "Q4_1"), ("granite", "F16")])
def test_on_equals_off(case: str, form: str) -> None:
    """Right, wrong and mixed drafts, and a real drafter of another vocabulary; one at a time and eight at once."""
    target, requests = native(case, form), varied_requests(max_tokens=16)
    expected = run(build(target, max_batch=1), requests, together=False, speculate=False)
    assert target.exact and not target.variance
    for proposer in (Oracle(target, requests, expected), Mixed(target, requests, expected), Garbage()):
        engine = build(target, proposer, max_batch=8)
        assert texts(run(engine, requests)) == texts(expected)
    drafter = model("qwen3", "llama2", seed=1)
    done = run(build(target, drafter=drafter, proposers="chain", draft_tokens=2, max_batch=8), requests)
    assert texts(done) == texts(expected) and total(done).drafted > 50


def test_rounds_accept_what_is_right() -> None:
    target, requests = native(), varied_requests(max_tokens=24)
    expected = run(build(target), requests, speculate=False)
    done = run(build(target, Oracle(target, requests, expected)), requests)
    assert total(done).accepted > 50  # the rest is not UTF-8, which no draft spells
    assert total(done).rounds < 0.8 * total(expected).rounds


def test_the_text_does_not_depend_on_threads() -> None:
    requests, threads = varied_requests(max_tokens=16), torch.get_num_threads()
    try:
        found = []
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append(texts(run(build(native()), requests)))
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_nothing_is_searched_for_and_nothing_tried() -> None:
    target, notes = native(), list[str]()
    target.allocate(2, 256)
    forward, calls = target.forward, []
    target.forward = lambda *given: calls.append(given) or forward(*given)  # type: ignore[method-assign, func-returns-value]
    choose_calls(target, notes)
    assert target.exact and not notes and not calls


def test_a_slot_rolls_back_and_is_copied() -> None:
    target, ids = native(), [5 + 7 * place % 90 for place in range(30)]
    target.allocate(2, 256)
    target.admit(0, 60)
    whole = target.forward([Rows(0, 0, ids, keep=30)])
    target.rollback(0, 11)
    target.fork(0, 1, 11)
    for slot in (0, 1):
        assert torch.equal(target.forward([Rows(slot, 11, ids[11:], keep=19)]), whole[11:])
    assert target.cache is not None and target.cache.lengths == [30, 30]


def test_what_does_not_suit_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="dtype native is for a GGUF file on a CPU: use dtype int8 or bfloat16"):
        load_model(str(tmp_path), dtype="native")
    with pytest.raises(ModelError, match="the architecture 'gemma' in native kernels"):
        native("gemma")
    with pytest.raises(ModelError, match="A head can't read a model with dtype native"):
        native().tap([0])
    with pytest.raises(ModelError, match="do not fit in memory"):
        native().allocate(10_000, 1 << 24)
