"""The engine's caches, recent completions and layouts of a text serve only the scope of that text."""

from __future__ import annotations

from dataclasses import replace

from codespec.api.types import CompletionRequest
from codespec.engine.engine import Engine
from codespec.proposers.lookup import SuffixProposer
from tests.pairs import build, model, prompts

REQUEST = CompletionRequest(prefix=prompts()[3], max_tokens=40, document="a", scope="mine")


def test_another_scope_begins_as_if_nothing_had_been_asked() -> None:
    engine = build(model("llama", "gpt2"), drafter=model("gpt_neox", "bytes", seed=1), draft_tokens=3)
    engine.proposers = (SuffixProposer(), *engine.proposers)
    mine = replace(REQUEST, max_tokens=20)
    requests = [mine, replace(mine, scope="theirs"), replace(mine, scope=""), mine]
    done = [engine.complete([request])[0] for request in requests]
    first, *others, again = [completion.stats for completion in done]
    assert len({completion.text for completion in done}) == 1
    assert first.drafter_prompt_tokens > 0
    for other in others:
        assert other.cached_tokens == other.drafter_cached_tokens == 0
        assert (other.rounds, other.by_source) == (first.rounds, first.by_source), "nothing was looked up"
    assert again.cached_tokens == first.prompt_tokens - 1 and again.rounds < first.rounds


def test_another_scopes_document_of_the_same_name_is_another_document() -> None:
    """Its window begins where a new document's does, not where the other scope's began."""
    text = "".join(prompts(8))
    engine, fresh = (build(model("llama", "gpt2"), context=256) for _ in range(2))

    def prompt(engine: Engine, scope: str, end: int) -> list[int]:
        request = replace(REQUEST, prefix=text[:end], scope=scope)
        return engine._admission.admit(request)[0].prompt_ids

    prompt(engine, "mine", 900)
    new = prompt(fresh, "theirs", 1040)
    assert prompt(engine, "theirs", 1040) == new != prompt(engine, "mine", 1040)
