"""A chat template is a program from the model's author: it can neither block the engine nor exhaust memory."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from codespec.server.chat_template_process import MAX_ADDED, RENDER_TIMEOUT_S
from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import user_environment
from tests.server.daemons import wait_for
from tests.server.test_process import Process, daemon
from tests.server.test_process_limits import memory

# Runs the attack that the first message names.
TEMPLATE = """
{%- set said = messages[0].content %}
{%- macro again(x) %}{{ again(x) }}{% endmacro %}
{%- if said == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}
{%- elif said == 'memory' %}{{ (said * 1000000000) | length }}
{%- elif said == 'long' %}{{ said * 1000000 }}
{%- elif said == 'deep' %}{{ again(said) }}
{%- elif said == 'name' %}{{ undefined.more }}
{%- else %}{{ said }}
{% endif %}"""
CHAT, PATH = "/v1/chat/completions", "/v1/codespec/complete"


@pytest.fixture(scope="module")
def talker(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:  # noqa: F811
    """Run a daemon with that template."""
    home = tmp_path_factory.mktemp("home")
    target = Path(shutil.copytree(models.target, home / "target"))
    (target / "chat_template.jinja").write_text(TEMPLATE)
    homes = user_environment(XDG_STATE_HOME=str(home / "state"))
    with daemon(*replace(models, target=target).flags, "--threads", "1", env=homes) as served:
        served.until_ready()
        yield served
        children = children_of(served)
        code, _, err = served.end(signal.SIGTERM)
        assert code == 0 and "Traceback" not in err and "please report" not in err, err
        assert not any(Path(f"/proc/{child}").exists() for child in children), "it ends with the daemon"


def children_of(served: Process) -> list[int]:
    number = served.process.pid
    return [int(word) for word in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def command_of(number: int) -> bytes:
    """Return a process's command line."""
    return Path(f"/proc/{number}/cmdline").read_bytes()


def processor_time(number: int) -> int:
    """Return a process's CPU time in clock ticks."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def say(served: Process, words: str) -> tuple[int, str]:
    """Return the status, and the error sentence of a rejection."""
    body = {"messages": [{"role": "user", "content": words}], "max_tokens": 2}
    status, message = served.ask("POST", CHAT, body)
    reply = json.loads(message)
    assert status == 200 or reply["error"]["field"] == "messages", message
    return status, "" if status == 200 else reply["error"]["message"]


def test_the_engine_goes_on_beside_a_template_that_loops(talker: Process) -> None:
    assert say(talker, "hello") == (200, "")
    found: list[tuple[int, str]] = []
    looping = threading.Thread(target=lambda: found.append(say(talker, "loop")))
    looping.start()
    body = {"prefix": "def f(x):\n", "max_tokens": 4, "shape": "raw"}
    assert talker.ask("POST", PATH, body)[0] == 200
    assert talker.ask("GET", "/health")[0] == 200
    assert looping.is_alive(), "both are answered before it is given up"
    looping.join()
    status, message = found[0]
    assert status == 400 and f"takes longer than {RENDER_TIMEOUT_S} s" in message
    assert say(talker, "hello") == (200, "")


@pytest.mark.parametrize(
    ("asked", "words"), [("memory", "MemoryError"), ("long", "longer"), ("deep", "recursion"), ("name", "undefined")]
)
def test_what_a_template_does_is_one_sentence(asked: str, words: str, talker: Process) -> None:
    assert say(talker, "hello") == (200, "")
    before = memory(talker)
    status, message = say(talker, asked)
    assert status == 400 and words in message, message
    assert memory(talker) - before < 64 * MAX_ADDED
    assert say(talker, "hello") == (200, "")


def test_a_client_that_goes_away_leaves_no_answer_to_the_next(talker: Process) -> None:
    assert say(talker, "hello") == (200, "")
    (child,) = (number for number in children_of(talker) if b"chat_template_process" in command_of(number))
    spent = processor_time(child)
    connection = talker.open(CHAT, {"messages": [{"role": "user", "content": "loop"}], "max_tokens": 2})
    assert wait_for(lambda: processor_time(child) > spent + 9), "it loops"
    connection.close()
    assert wait_for(lambda: child not in children_of(talker)), "the process is ended with the request"
    assert say(talker, "hello") == (200, "")
