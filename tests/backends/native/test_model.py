"""dtype native in the engine: the same text with and without speculation and with any number of threads."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from codespec_native.library import Pool, paths

from codespec.api.config import EngineConfig
from codespec.backends.language_model import LanguageModel, Rows
from codespec.backends.loader import load_model
from codespec.backends.native.model import NativeModel
from codespec.engine.engine import Engine
from codespec.errors import ModelError
from codespec.startup.parts import load_target_head
from tests.backends.gguf.files import write_model
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
    requests, found = varied_requests(max_tokens=16), []
    for count in (1, 3):
        target = native()
        target._pool = Pool(count)  # type: ignore[attr-defined]
        found.append(texts(run(build(target, threads=1), requests)))
    assert found[0] == found[1]


def test_an_instruction_set_is_forced_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for path in paths():
        monkeypatch.setenv("CODESPEC_NATIVE_PATH", path)
        engine = Engine.load(target=str(file("qwen2", "Q8_0")), drafter="none", dtype="native", learn=False)
        assert engine.kernel == f"native ({path})"
        found[path] = texts(run(engine, varied_requests(max_tokens=8)))
    assert all(each == found["scalar"] for each in found.values())
    monkeypatch.setenv("CODESPEC_NATIVE_PATH", "mmx")
    with pytest.raises(
        ModelError, match=r" = 'mmx' can't run on this processor: set CODESPEC_NATIVE_PATH to one of .*scalar\.$"
    ):
        native()


def test_nothing_is_searched_for_and_nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codespec.startup.batch_invariance.check_exact", lambda *_: pytest.fail("exact mode was tried"))
    engine = Engine.assemble(native(), None, EngineConfig(policy="fixed", context=256))
    assert engine.mode == "exact" and not engine.notes


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what is resident from /proc")
def test_slots_take_memory_only_where_they_hold_tokens() -> None:
    target, slots = native(), 64
    target.allocate(slots, 8192)
    assert isinstance(target, NativeModel) and target._native is not None

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = resident()
    for slot in range(slots):
        target.admit(slot, 1)
        target.step([Rows(slot, 0, [5], keep=1)])
    assert resident() - before < target._native.nbytes / 4


def test_a_slot_rolls_back_and_is_copied() -> None:
    target, ids = native(), [5 + 7 * place % 90 for place in range(30)]
    target.allocate(2, 256)
    target.admit(0, 60)
    whole = target.step([Rows(0, 0, ids, keep=30)])
    target.rollback(0, 11)
    target.fork(0, 1, 11)
    for slot in (0, 1):
        assert np.array_equal(target.step([Rows(slot, 11, ids[11:], keep=19)]), whole[11:])


def test_what_does_not_suit_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="dtype native runs only on a CPU: use dtype bfloat16, or device cpu"):
        load_model(str(file("qwen2", "Q8_0")), dtype="native", device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ModelError, match=r"the architecture 'gemma'.: to use torch, run `pip install "):
            native("gemma")
    with pytest.raises(ModelError, match="A head can't read the layers of a model with dtype native"):
        load_target_head(native(), EngineConfig(head=str(tmp_path)))
    with pytest.raises(ModelError, match="do not fit in memory"):
        native().allocate(10_000, 1 << 24)


def test_a_vocabulary_that_is_in_use_is_not_read_again(tmp_path: Path) -> None:
    """Until its file changes. An idle daemon has it, and so answers sooner when its models come back."""
    place = write_model(tmp_path / "model.gguf", "qwen2", "Q8_0")
    first, second = (load_model(str(place), dtype="native") for _ in range(2))
    assert first.tokenizer is second.tokenizer
    os.utime(place, ns=(0, 0))
    assert load_model(str(place), dtype="native").tokenizer is not first.tokenizer
