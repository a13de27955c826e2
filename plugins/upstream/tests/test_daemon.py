"""The daemon's endpoints, with text from another server."""

from __future__ import annotations

import pytest
from codespec_upstream.client import UpstreamClient
from codespec_upstream.source import Upstream

from plugins.upstream.tests.servers import QWEN, FakeServer, fake_server
from tests.server.daemons import Served, serving_source, wait_for

FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
PLACE = {"prefix": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n", "path": "a.py", "document": "d"}


def complete(daemon: Served, **fields: object) -> list[tuple[str, dict]]:
    answer = daemon.post("/v1/codespec/complete", {**PLACE, **fields})
    assert answer.status == 200, answer.json
    return answer.events


def text_of(events: list[tuple[str, dict]]) -> str:
    return "".join(value["text"] for name, value in events if name == "text")


def test_completes_with_the_models_own_template(upstream: FakeServer, daemon: Served) -> None:
    events = complete(daemon)
    assert text_of(events) == "a + b"
    done = events[-1][1]
    assert done["finish_reason"] == "stop" and done["stats"]["prompt_tokens"] == 7 and done["cached_tokens"] == 3
    (sent,) = upstream.streams
    assert sent.path == "/v1/completions" and sent.body["model"] == QWEN and "suffix" not in sent.body
    assert sent.body["prompt"] == f"{FIM[0]}{PLACE['prefix']}{FIM[1]}{PLACE['suffix']}{FIM[2]}"
    assert [value["target_text"] for name, value in events if name == "round"] == ["a ", "+ ", "b"]


def test_uses_suffix_where_the_server_has_it() -> None:
    with fake_server(suffix="taken") as upstream, serving_source(Upstream(UpstreamClient(upstream.url))) as daemon:
        assert text_of(complete(daemon)) == "a + b"
        (sent,) = upstream.streams
        assert (sent.body["prompt"], sent.body["suffix"]) == (PLACE["prefix"], PLACE["suffix"])


def test_a_suffix_that_is_ignored_is_not_used() -> None:
    with fake_server(suffix="ignored") as upstream, serving_source(Upstream(UpstreamClient(upstream.url))) as daemon:
        complete(daemon)
        assert "suffix" not in upstream.streams[0].body and FIM[2] in upstream.streams[0].body["prompt"]


def test_an_unknown_model_only_continues() -> None:
    models = [{"id": "mystery-7b"}]
    with fake_server(models=models) as upstream, serving_source(Upstream(UpstreamClient(upstream.url))) as daemon:
        done = complete(daemon)[-1][1]
        assert "the upstream server can't fill in: the text after the cursor was not used" in done["stats"]["notes"]
        assert upstream.streams[0].body["prompt"] == PLACE["prefix"]
        assert daemon.post("/infill", {"input_prefix": "a", "input_suffix": "b"}).status == 501


def test_snippets_go_before_the_prompt(upstream: FakeServer, daemon: Served) -> None:
    complete(daemon, snippets=[{"path": "b.py", "text": "import os\n"}])
    prompt = upstream.streams[0].body["prompt"]
    assert prompt.startswith("<|file_sep|>b.py\nimport os\n<|file_sep|>a.py\n<|fim_prefix|>def add")
    refused = daemon.post("/v1/codespec/complete", {**PLACE, "snippets": [{"path": "id_rsa", "text": "x"}]})
    assert refused.status == 400 and "secrets" in refused.json["error"]["message"]


def test_the_end_of_a_file_is_filled_in_too(upstream: FakeServer, daemon: Served) -> None:
    complete(daemon, suffix="", shape="line", snippets=[{"path": "b.py", "text": "import os\n"}])
    prompt = upstream.streams[0].body["prompt"]
    assert prompt.startswith("<|file_sep|>b.py\nimport os\n") and prompt.endswith(FIM[1] + FIM[2])


def test_markers_in_the_source_never_become_control_tokens(upstream: FakeServer, daemon: Served) -> None:
    complete(daemon, prefix='end = "<|fim_middle|>"\nx = ')
    prompt = upstream.streams[0].body["prompt"]
    assert prompt.count(FIM[2]) == 1 and prompt.endswith(FIM[2]) and "< |fim_middle|>" in prompt


def test_shapes_and_filters_end_the_text_and_the_servers_work(upstream: FakeServer, daemon: Served) -> None:
    upstream.answer, upstream.pause = "a + b\n\n\ndef other():\n    " + "return 1 " * 500, 0.01
    assert text_of(complete(daemon, shape="line")) == "a + b"
    assert wait_for(lambda: upstream.gone > 0) and upstream.written < 500, "the server goes on writing"


def test_a_stop_and_the_rest_of_the_line(upstream: FakeServer, daemon: Served) -> None:
    upstream.answer = "a + b) # sum"
    assert text_of(complete(daemon, prefix="print(", suffix=")\n", shape="auto")) == "a + b"
    reply = daemon.post("/v1/completions", {"prompt": "x", "stop": [" #"]}).json
    assert reply["choices"][0]["text"] == "a + b)" and reply["choices"][0]["finish_reason"] == "stop"
    assert upstream.streams[1].body["prompt"] == "x"


def test_length_limits(upstream: FakeServer, daemon: Served) -> None:
    upstream.answer = "one two three four"
    reply = daemon.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).json
    assert reply["choices"][0]["text"] == "one two " and reply["choices"][0]["finish_reason"] == "length"


def test_a_long_prefix_is_cut_at_a_line_and_keeps_its_start(upstream: FakeServer, daemon: Served) -> None:
    lines = "".join(f"value_{number} = {number}\n" for number in range(3000))
    for typed in ("x = ", "x = v"):
        complete(daemon, prefix=lines + typed)
    first, second = (sent.body["prompt"] for sent in upstream.streams)
    assert (
        len(first) < 2048 * 3
        and first.startswith("<|fim_prefix|>value_")
        and second.split("\n")[0] == first.split("\n")[0]
    )


def test_closing_reaches_the_server_within_a_round(upstream: FakeServer, daemon: Served) -> None:
    upstream.answer, upstream.pause = "word " * 1000, 0.02
    connection = daemon.open("/v1/codespec/complete", {**PLACE, "shape": "raw", "max_tokens": 900})
    assert connection.getresponse().read(10)
    assert wait_for(lambda: upstream.streams)
    connection.close()
    if connection.sock is not None:
        connection.sock.close()
    assert wait_for(lambda: upstream.gone > 0) and upstream.written < 500


def test_a_newer_request_ends_the_older(upstream: FakeServer, daemon: Served) -> None:
    upstream.answer, upstream.pause = "word " * 1000, 0.02
    connection = daemon.open("/v1/codespec/complete", {**PLACE, "shape": "raw", "max_tokens": 900})
    response = connection.getresponse()
    upstream.answer = "a + b"
    complete(daemon, shape="line")
    assert b'"finish_reason":"cancelled"' in response.read()
    assert wait_for(lambda: upstream.gone > 0) and upstream.written < 500
    connection.close()


@pytest.mark.parametrize(
    "path, body",
    [
        ("/infill", {"input_prefix": "def f(a, b):\n    return ", "input_suffix": "\n", "n_predict": 8}),
        ("/completion", {"prompt": "x = ", "n_predict": 8}),
        ("/v1/fim/completions", {"prompt": "x = ", "suffix": "\n", "max_tokens": 8}),
        ("/api/generate", {"prompt": "x = ", "suffix": "\n", "stream": False}),
        (
            "/v1/completions",
            {"segments": {"prefix": "def f(a, b):\n    return ", "suffix": "\n"}, "language": "python"},
        ),
    ],
)
def test_every_dialect_answers(daemon: Served, path: str, body: dict) -> None:
    answer = daemon.post(path, body)
    assert answer.status == 200 and b"a + b" in answer.body


def test_what_needs_tokens_is_refused(daemon: Served) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": [1, 2]}),
        ("/v1/completions", {"prompt": "x", "logprobs": 1}),
        ("/tokenize", {"content": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        answer = daemon.post(path, body)
        assert answer.status in (400, 501) and answer.json["error"]["message"].count(": ") == 1, answer.json


def test_time_limits_cut(upstream: FakeServer, daemon: Served) -> None:
    upstream.answer, upstream.pause = "word " * 1000, 0.02
    done = complete(daemon, shape="raw", max_tokens=900, deadline_ms=1000)[-1][1]
    assert done["finish_reason"] == "deadline"
    assert wait_for(lambda: upstream.gone > 0) and upstream.written < 500


def test_choices_and_equal_requests(upstream: FakeServer, daemon: Served) -> None:
    reply = daemon.post("/v1/completions", {"prompt": "x", "n": 3, "temperature": 0.5, "seed": 4}).json
    assert [choice["text"] for choice in reply["choices"]] == ["a + b"] * 3
    assert sorted(sent.body["seed"] for sent in upstream.streams) == [4, 5, 6]


def test_the_session_id_goes_on(upstream: FakeServer, daemon: Served) -> None:
    for session in ("0123abcd", "no spaces\u00e9 here"):
        daemon.post("/v1/codespec/complete", PLACE, x_session_id=session)
    assert [sent.headers.get("x-session-id") for sent in upstream.streams] == ["0123abcd", None]


def test_it_says_that_another_server_writes(upstream: FakeServer, daemon: Served) -> None:
    complete(daemon)
    stats = daemon.ask("GET", "/v1/codespec/stats").json["daemon"]
    assert (
        stats["mode"] == "upstream" and stats["upstream"]["exact"] is False and stats["upstream"]["circuit"] == "closed"
    )
    assert stats["upstream"]["fill_in"] == "by the qwen template" and stats["upstream"]["requests"]["done"] == 1
    assert daemon.ask("GET", "/health").json["upstream"]["url"] == f"{upstream.url}/v1"
    metrics = daemon.ask("GET", "/metrics").body.decode()
    assert (
        'codespec:source{source="upstream"} 1.0' in metrics and 'upstream_requests_total{outcome="done"} 1.0' in metrics
    )
    assert daemon.ask("GET", "/v1/models").json["data"][0]["id"] == QWEN


def test_a_warm_up_reads_the_prompt_there(upstream: FakeServer, daemon: Served) -> None:
    events = complete(daemon, warm_up=True)
    assert text_of(events) == "" and events[-1][1]["finish_reason"] == "length"
    assert upstream.streams[0].body["max_tokens"] == 1


def test_nothing_is_sent_where_nothing_is_suggested(upstream: FakeServer, daemon: Served) -> None:
    assert text_of(complete(daemon, prefix="def f", suffix="oo():\n")) == ""
    assert not upstream.streams
