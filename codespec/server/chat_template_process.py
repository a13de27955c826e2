"""Renders conversations with a model's chat template, in a process of its own: `python -P -m
codespec.server.chat_template_process` reads a line of JSON and writes one, again and again.

A template is a program that came with the model. Jinja's sandbox keeps it from files, but not from looping or from
taking all memory. This process bounds both, and the daemon ends it if it does not reply. Knows jinja's templates as
transformers runs them; knows no tokens and no requests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from codespec.bounded_json import parse_json

SECONDS = 5  # for one conversation: real templates take some thousandths
MEMORY = 1 << 29  # bytes on top of what the packages take
MOST_ADDED = 1 << 20  # characters of the template's own; the messages may stand in the text twice


def render(conversation: Mapping[str, Any]) -> dict[str, str]:
    """The `text` of the `messages` by `template`, which may name special `tokens`; or the `error` of the template."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = conversation["messages"]
    try:
        rendered: Any = render_jinja_template(  # a pair, whatever its annotation says
            conversations=[messages],
            chat_template=conversation["template"],
            add_generation_prompt=True,
            **conversation["tokens"],
        )
    except Exception as error:  # whatever a template does is reported, not raised
        return {"error": str(error) or type(error).__name__}
    text = str(rendered[0][0])
    if len(text) > MOST_ADDED + 2 * sum(len(message["content"]) for message in messages):
        return {"error": "its text is longer than twice the messages"}
    return {"text": text}


def main() -> None:
    """Replies until the input ends."""
    import transformers.utils.chat_template_utils  # noqa: F401 - takes seconds, before the first conversation

    _bound_memory()
    _write({})
    for line in sys.stdin.buffer:
        signal.alarm(2 * SECONDS)  # in case the daemon is gone, which ends this process sooner
        _write(render(parse_json(line)))
        signal.alarm(0)


def _write(reply: Mapping[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()


def _bound_memory() -> None:
    """Allows MEMORY more than it has; if the system does not report that, time is the only bound."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
