"""The status for a status bar: the state, the daemon and its models, the last completion, and the reason."""

from __future__ import annotations

from typing import Any

from codespec_lsp.status import explain, last_completion

from codespec import __version__
from tests.lsp.conversation import run
from tests.lsp.fake_daemon import talking

STATS = {
    "prompt_tokens": 1500,
    "rounds": 11,
    "committed": 40,
    "drafted": 44,
    "accepted": 30,
    "decode_ms": 100.0,
    "plain_ms": 171.4,
    "by_source": {"suffix": {"drafted": 14, "accepted": 12}, "draft_model": {"drafted": 30, "accepted": 18}},
    "ended": "the block is complete",
    "notes": ["the prompt was trimmed", "max_tokens was cut to 1024"],
}
DONE = {"finish_reason": "stop", "cached_tokens": 1488, "new_tokens": 12, "stats": STATS}


def test_status_names_the_daemon_and_its_models() -> None:
    async def scenario() -> None:
        async with talking() as (client, fake):
            status = await client.status()
            url = f"http://127.0.0.1:{fake.port}"
            daemon = {
                "url": url,
                "page": f"{url}/",
                "state": "ready",
                "message": "",
                "error": "",
                "version": __version__,
                "idle": False,
            }
            models = {"target": "big", "drafter": "small", "model": "", "offer": None, "names": [], "warning": ""}
            assert status["daemon"] == {**daemon, **models}
            assert status["last"] is None and status["counters"]["lastMs"] is None
            assert not fake.asked, "looking asks for no completion"
            client.open("x = \n")
            fake.script = ["1"]
            await client.texts(0, 4)
            status = await client.status()
            assert status["counters"]["lastMs"] > 0 and status["counters"]["acceptance"] == 0
            assert status["last"] == {"committed": 0, "drafted": 0, "accepted": 0, "speedUp": None}

    run(scenario())


def test_what_an_edit_does_not_show_the_items_command_tells() -> None:
    """One character could be a key press: only the command shows that it was a suggestion, which counts once."""

    async def scenario() -> None:
        async with talking() as (client, fake):
            client.open("x = \n")
            fake.script = ["1"]
            (item,) = await client.items(0, 4)
            client.type(2, 0, 4, "1")
            assert (await client.status())["counters"]["accepted"] == 0
            for arguments in ([], [7], ["of another server"], item["command"]["arguments"]):
                await client.request("workspace/executeCommand", {**item["command"], "arguments": arguments})
            await client.request("workspace/executeCommand", item["command"])
            assert (await client.status())["counters"]["accepted"] == 1

    run(scenario())


def test_status_without_a_daemon() -> None:
    async def scenario() -> None:
        async with talking(url="http://127.0.0.1:1") as (client, _):
            daemon = (await client.status())["daemon"]
            assert (daemon["state"], daemon["target"]) == ("absent", "")
        async with talking(token_file="missing-token") as (client, _):
            daemon = (await client.status())["daemon"]
            assert daemon["state"] == "foreign" and "missing-token can't be read" in daemon["message"]

    run(scenario())


def sentences(done: dict[str, Any], reason: str = "", milliseconds: float | None = None) -> str:
    return " ".join(explain(done, reason, milliseconds))


def test_explaining_the_last_completion() -> None:
    message = sentences(DONE, milliseconds=43.2)
    for words in (
        "took 43 ms",
        "12 of the prompt's 1500 tokens had",
        "40 tokens were written in 11 rounds",
        "30 of 44 drafted tokens were right (suffix 12 of 14, draft_model 18 of 30)",
        "1.7 × the speed of plain",
        "because the block is complete",
        "Note: the prompt was trimmed.",
        "Note: max_tokens was cut to 1024.",
    ):
        assert words in message
    assert last_completion(DONE) == {"committed": 40, "drafted": 44, "accepted": 30, "speedUp": 1.71}
    assert "codespec.maxTokens allows" in sentences(
        {**DONE, "finish_reason": "length", "stats": {**STATS, "ended": ""}}
    )


def test_explaining_an_answer_from_the_cache() -> None:
    message = list(explain(DONE, "", 0.4, from_cache=True))
    assert message[1].startswith("It came from the cache, without a model")
    assert "cache" not in sentences(DONE, milliseconds=43.2)
    assert "from the cache" not in " ".join(explain({}, "", None, from_cache=True))


def test_explaining_nothing() -> None:
    assert sentences({}) == "The daemon has completed nothing yet."
    assert sentences({}, "a.env may hold secrets.").startswith("a.env may hold secrets. ")
    assert last_completion({}) is None
    assert "right" not in sentences({"finish_reason": "stop", "stats": {"rounds": 0}})
