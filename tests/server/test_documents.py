"""Documents over the wire: the warm part of a prompt at a keystroke, the reply to a warm-up, and which request ends
another.
"""

from __future__ import annotations

from typing import Any

from codespec.api.types import CompletionRequest, DoneEvent
from codespec.engine.job import Priority
from tests.pairs import prompts
from tests.server.daemons import Answer, Served, wait_for
from tests.server.test_prefetch import REQUEST, Harness

PATH = "/v1/codespec/complete"
TEXT = "".join(prompts(8))


def body(prefix: str, **more: Any) -> dict[str, Any]:
    return {"document": "mine", "path": "a.py", "prefix": prefix, "max_tokens": 12, "shape": "line", **more}


def done_of(reply: Answer) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    (data,) = (data for name, data in reply.events if name == "done")
    return data


def test_a_warm_up_says_nothing_and_the_next_keystroke_is_warm(toy: Served) -> None:
    text = TEXT[:700]
    warm = toy.post(PATH, body(text, warm_up=True))
    assert [name for name, _ in warm.events] == ["done"]
    done = done_of(warm)
    assert (done["finish_reason"], done["stats"]["committed"]) == ("length", 0) and done["new_tokens"] > 100
    reply = done_of(toy.post(PATH, body(text)))
    assert reply["new_tokens"] == 1 and reply["cached_tokens"] == done["cached_tokens"] + done["new_tokens"] - 1
    other = done_of(toy.post(PATH, body("# another\n" + text, document="other")))
    assert other["cached_tokens"] < 20
    assert done_of(toy.post(PATH, body(text + "x")))["new_tokens"] <= 4


def test_a_client_may_send_the_last_part_of_a_long_document(toy: Served) -> None:
    text = TEXT[:2600]
    for place in (2000, 2001, 2002):
        sent = text[place - 1500 : place]
        done = done_of(toy.post(PATH, body(sent, prefix_offset=place - 1500, document="long")))
    assert done["new_tokens"] <= 4


def test_rounds_tell_where_and_how_long(toy: Served) -> None:
    reply = toy.post(PATH, body(TEXT[:400], shape="raw"))
    rounds = [data for name, data in reply.events if name == "round"]
    assert rounds and all(data["length"] >= data["drafted"] and data["context"] for data in rounds)
    assert any(data["length"] for data in rounds)


def test_props_tell_what_the_caches_hold(toy: Served) -> None:
    toy.post(PATH, body(TEXT[:500]))
    assert wait_for(toy.idle)
    for use in toy.ask("GET", "/props").json["caches"].values():
        assert use["taken"] == 0 and 0 < use["nbytes"] <= use["max_bytes"] and use["tokens"] > 100


def ends(harness: Harness, *handles: Any) -> list[str]:
    """Return the finish reason of each request, or "" if it is running."""
    found = []
    for handle in handles:
        reasons = [one.completion.finish_reason for one in harness.found[handle] if isinstance(one, DoneEvent)]
        found.append("".join(reasons))
    return found


def test_a_warm_up_ends_no_text_and_a_newer_text_ends_both() -> None:
    harness = Harness(prefetch=False)
    text = harness.admit(REQUEST)
    harness.rounds(3)
    warm = harness.admit(CompletionRequest(prefix="w", max_tokens=0, document="a"), Priority.WARM_UP)
    harness.rounds(3)
    assert ends(harness, text, warm) == ["", ""]
    newer = harness.admit(CompletionRequest(prefix="n", max_tokens=4, document="a"))
    harness.rounds()
    assert ends(harness, text, warm, newer) == ["cancelled", "cancelled", "length"]
