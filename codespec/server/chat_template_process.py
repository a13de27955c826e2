"""Render conversations with a model's chat template, in a separate process.

`python -P -m codespec.server.chat_template_process` reads one line of JSON and writes one, in a loop.

A template is a program that ships with the model. Jinja's sandbox denies access to files, but it does not prevent
endless loops or the use of all memory. This process limits time and memory, and the daemon kills it if it does not
reply.
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

SECONDS = 5  # per conversation: real templates take a few milliseconds
MEMORY = 1 << 29  # bytes, in addition to those of the packages
MOST_ADDED = 1 << 20  # characters that the template may add; the messages may occur twice in the text


def render(conversation: Mapping[str, Any]) -> dict[str, str]:
    """Render `messages` with `template` and its special `tokens`. Return the `text`, or the template's `error`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = conversation["messages"]
    try:
        rendered: Any = render_jinja_template(  # a pair, despite its annotation
            conversations=[messages],
            chat_template=conversation["template"],
            add_generation_prompt=True,
            **conversation["tokens"],
        )
    except Exception as error:  # report any exception of the template instead of raising it
        return {"error": str(error) or type(error).__name__}
    text = str(rendered[0][0])
    if len(text) > MOST_ADDED + 2 * sum(len(message["content"]) for message in messages):
        return {"error": "its text is longer than twice the messages"}
    return {"text": text}


def main() -> None:
    """Reply to each line of stdin until it ends."""
    import transformers.utils.chat_template_utils  # noqa: F401 - takes seconds, before the first conversation

    _bound_memory()
    _write({})
    for line in sys.stdin.buffer:
        signal.alarm(2 * SECONDS)  # a fallback if the daemon is gone; it normally kills this process sooner
        _write(render(parse_json(line)))
        signal.alarm(0)


def _write(reply: Mapping[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()


def _bound_memory() -> None:
    """Limit the address space to MEMORY above its current size, if the system reports that size."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
