"""Long prompts with short completions: editing a document costs little compute, for the target and the drafter.

This holds whatever other requests come in between, and each completion equals that of its prompt alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from codespec.api.types import Completion, CompletionRequest, Shape, Snippet, Stats
from codespec.engine.admission import Admission
from codespec.engine.engine import Engine
from codespec.proposers.draft_model import DraftModel
from codespec.sequence import Sequence
from codespec.speculation.policy import FixedLength
from codespec.text.tokenizer import TextTokenizer
from tests.pairs import CONTEXT, cancel, texts, total
from tests.parrot import Parrot
from tests.toy_tokenizers import held_out_texts, toy_backend, toy_tokenizer

TEXT = held_out_texts()[0]
PLACE = 6000  # the cursor, in a file of 12,000 characters
TYPED = "value = self._first(other, key)\nreturn [item for item in value if item]\n"


@cache
def spelling(kind: str, order: str) -> TextTokenizer:
    """Return a vocabulary that declares an order of prefix, suffix and middle."""
    orders = {"codespec_fim_orders": ["psm", order]}
    return TextTokenizer.from_backend(toy_backend(kind), eos_ids=toy_tokenizer(kind).model_eos_ids, config=orders)


def counting_engine(order: str, chunk: int = 256) -> Engine:
    """Return an engine with two running slots and room for eight prompts; its fake models record the ids fed."""
    target, drafter = (Parrot(spelling(kind, order), "", slots=8) for kind in ("gpt2", "llama3"))
    proposer = DraftModel(drafter, CONTEXT, 8, chunk=chunk)
    settings = {"context": CONTEXT, "max_batch": 2, "slots": 8, "prefill_chunk": chunk, "warmup": 0}
    return Engine(target, [proposer], FixedLength(1), **settings)  # type: ignore[arg-type]


@dataclass
class Editor:
    """One document and its cursor; requests completions like a language server."""

    name: str
    before: str
    behind: str
    snippets: tuple[Snippet, ...] = ()
    most: int = 100_000  # maximum characters sent before the cursor
    asked: list[CompletionRequest] = field(default_factory=list)

    def ask(self, engine: Engine, **change: object) -> Completion:
        """Complete at the cursor."""
        offset = max(0, len(self.before) - self.most)
        request = CompletionRequest(
            prefix=self.before[offset:],
            suffix=self.behind,
            path=f"{self.name}.txt",
            snippets=self.snippets,
            max_tokens=3,
            shape="line",
            heal=True,
            document=self.name,
            prefix_offset=offset,
        )
        self.asked.append(replace(request, **change))  # type: ignore[arg-type]
        return engine.complete([self.asked[-1]])[0]

    def jump(self, by: int) -> None:
        """Move the cursor by a number of characters."""
        whole, place = self.before + self.behind, len(self.before) + by
        self.before, self.behind = whole[:place], whole[place:]


def editor(name: str, **more: object) -> Editor:
    """Return an editor in the middle of a long file; each name has another file."""
    text = f"# {name}\n" + TEXT[len(name) * 100 :][:12_000]
    return Editor(name, text[:PLACE], text[PLACE:], **more)  # type: ignore[arg-type]


def session(mine: Editor) -> Iterator[str]:
    """A hundred keystrokes: typing, deleting, a new line, a jump away and back, other snippets."""
    for number in range(100):
        if number == 40:
            mine.jump(-2500)
            yield "jump"
        elif number == 45:
            mine.jump(2500)
            yield "back"
        elif number == 60:
            mine.snippets = (*mine.snippets[1:], Snippet("new.py", "NEW = 1\n" * 5))
            yield "snippets"
        elif number % 17 in (12, 13, 14):
            mine.before = mine.before[:-1]
            yield "delete"
        elif number % 30 == 29:
            mine.before += "\n    "
            yield "newline"
        else:
            mine.before += TYPED[number % len(TYPED)]
            yield "type"


@dataclass
class Work:
    """The work of a session."""

    warm: Stats = field(default_factory=Stats)
    kinds: dict[str, list[float]] = field(default_factory=dict)  # the share of each prompt that was new

    def add(self, kind: str, done: Completion) -> None:
        """Add one completion."""
        self.warm.add(done.stats)
        self.kinds.setdefault(kind, []).append(1 - done.stats.cached_tokens / done.stats.prompt_tokens)


def test_the_end_of_a_file_is_a_cursor_too() -> None:
    """Nothing behind the cursor keeps the markers and the other files; raw text is continued as it is."""
    parrot = Parrot(toy_tokenizer("gpt2"), "")
    admission, names = Admission(parrot, CONTEXT), parrot.tokenizer.vocab
    shapes: dict[Shape, bool] = {"line": True, "block": True, "auto": True, "raw": False}
    for shape, fills in shapes.items():
        request = CompletionRequest(
            prefix="Crate(", path="a.py", snippets=(Snippet("b.py", "class Crate: ...\n"),), shape=shape
        )
        (sequence,) = admission.admit(request)
        ids = sequence.prompt_ids
        assert (ids[-1] == names["<|fim_middle|>"]) is fills
        assert (b"class Crate" in parrot.tokenizer.decode_bytes(ids)) is fills


@pytest.mark.parametrize("order,most", [("spm", 100_000), ("psm", 4000)])
def test_typing_computes_a_fifth_of_what_reading_anew_does(order: str, most: int) -> None:
    """Counted in prompt tokens, with requests for two other documents in between; more documents than run at once."""
    engine = counting_engine(order)
    mine = editor("mine", snippets=(Snippet("b.py", "B = 2\n" * 9), Snippet("c.py", "C = 3\n" * 9)), most=most)
    others, work = [editor("other"), editor("a third")], Work()
    mine.ask(engine)
    for number, kind in enumerate(session(mine)):
        work.add(kind, mine.ask(engine))
        if number % 3 == 0:
            others[number % 2].before += "x"
            others[number % 2].ask(engine)
    warm = work.warm
    assert warm.prompt_tokens >= 100 * 0.6 * (CONTEXT - 128), "the budget was full"
    assert warm.prompt_tokens >= 5 * (warm.prompt_tokens - warm.cached_tokens)
    assert warm.drafted >= 50 and warm.drafter_prompt_tokens >= 100 * 0.4 * CONTEXT
    assert warm.drafter_prompt_tokens >= 5 * (warm.drafter_prompt_tokens - warm.drafter_cached_tokens)
    least = 0.05
    assert sorted(work.kinds["type"])[len(work.kinds["type"]) * 9 // 10] <= least
    assert max(work.kinds["delete"] + work.kinds["snippets"] + work.kinds["back"]) <= 0.15


def test_a_policy_knows_what_the_drafter_has_read() -> None:
    """Otherwise the cost policy would charge the drafter for the whole prompt, and never draft for a short text."""
    engine, mine = counting_engine("spm"), editor("mine")
    mine.ask(engine)
    mine.before += "x"
    mine.ask(engine)
    for request, known in ((mine.asked[-1], True), (replace(mine.asked[-1], document="b"), False)):
        (sequence,) = engine.submit(request)
        engine.step()
        assert sequence.outlook.read_by == ({} if known else {"draft_model": 0})
        cancel(engine, sequence)


def test_a_cold_engine_computes_it_all() -> None:
    """The baseline of the numbers above: the same requests, each in a new engine."""
    mine = editor("mine")
    for _ in range(2):
        done = mine.ask(counting_engine("spm"))
        assert done.stats.cached_tokens == done.stats.drafter_cached_tokens == 0 < done.stats.drafter_prompt_tokens


def test_a_document_gets_what_its_prompt_alone_gets() -> None:
    """Warm slots, copied prefixes and drafts change no token; these models' choices depend on every id in a slot."""
    engine, found = counting_engine("spm"), []
    admit = engine._admission.admit
    prompts: list[tuple[int, ...]] = []

    def noting(request: CompletionRequest) -> list[Sequence]:
        sequences = admit(request)
        prompts.append(tuple(sequences[0].prompt_ids))
        return sequences

    engine._admission.admit = noting  # type: ignore[method-assign]
    mine, other = editor("mine"), editor("other")
    for number, _ in enumerate(session(mine)):
        if number % 5 == 0:
            found.append(mine.ask(engine, heal=False, shape="raw", max_tokens=8))
            found.append(other.ask(engine, heal=False, shape="raw", max_tokens=8, temperature=0.8, seed=number))
    assert total(found).cached_tokens > total(found).prompt_tokens / 2 and total(found).drafted > 100
    asked = [request for both in zip(mine.asked, other.asked, strict=True) for request in both]
    for ids, request, done in zip(prompts, asked, found, strict=True):
        alone = replace(request, prompt_ids=ids, prefix="", suffix="", snippets=(), document="")
        assert counting_engine("spm").complete([alone])[0].token_ids == done.token_ids


def test_no_document_no_history() -> None:
    engine, mine = counting_engine("spm"), editor("mine")
    for number, _ in enumerate(session(mine)):
        mine.ask(engine)
        if number % 10 == 9:
            found, fresh = mine.ask(engine, document=""), counting_engine("spm").complete([mine.asked[-1]])[0]
            assert texts([found]) == texts([fresh])
            assert found.stats.prompt_tokens == fresh.stats.prompt_tokens
