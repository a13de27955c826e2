"""What the engine keeps of a text serves the scope that the text is of: caches, recent completions, layouts."""

from __future__ import annotations

from dataclasses import replace

from codespec.proposers.chain import ChainProposer
from codespec.proposers.suffix import SuffixProposer
from codespec.types import CompletionRequest
from tests.engine.test_documents import Editor, counting_engine
from tests.pairs import build, model, prompts
from tests.toy_tokenizers import held_out_texts

REQUEST = CompletionRequest(prefix=prompts()[3], max_tokens=40, document="a", scope="mine")


def test_another_scope_begins_as_if_nothing_had_been_asked() -> None:
    engine = build(model("llama", "gpt2"), drafter=model("gpt_neox", "bytes", seed=1), draft_tokens=8)
    assert engine.proposer is not None
    engine.proposer = ChainProposer([SuffixProposer(), engine.proposer])
    requests = [REQUEST, replace(REQUEST, scope="theirs"), replace(REQUEST, scope=""), REQUEST]
    done = [engine.complete([request])[0] for request in requests]
    first, *others, again = [completion.stats for completion in done]
    assert len({completion.text for completion in done}) == 1
    assert first.drafter_prompt_tokens > 0
    for other in others:
        assert other.cached_tokens == other.drafter_cached_tokens == 0
        assert (other.rounds, other.by_source) == (first.rounds, first.by_source), "nothing was looked up"
    assert again.cached_tokens == first.prompt_tokens - 1 and again.rounds < first.rounds


def test_another_scopes_document_of_the_same_name_is_another_document() -> None:
    """Its window lies where it would without the first one, whose own stays where it was."""
    text = held_out_texts()[0]
    engine, fresh = counting_engine("spm"), counting_engine("spm")
    mine = Editor("a", text[:6000], text[6000:8000])
    mine.ask(engine, scope="mine")
    their_request = replace(mine.asked[-1], prefix=text[900:5900], scope="theirs")
    theirs = engine.submit(their_request)[0]
    assert theirs.prompt_ids == fresh.submit(their_request)[0].prompt_ids
    engine.cancel(theirs)
    mine.before += "x"
    assert mine.ask(engine, scope="mine").stats.cached_tokens > 300
