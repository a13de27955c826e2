"""Lays conversations out by a model's chat template, in a process of its own: `python -P -m
codespec.server.template_child` reads a line of JSON and writes one, again and again.

Knows jinja's templates as transformers runs them; knows no tokens and no requests. A template is a program that came
with the model: jinja's sandbox keeps it from files, and neither from looping nor from taking all memory. Here both are
bounded, and the daemon ends the process where it does not answer.
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
MEMORY = 1 << 29  # bytes beside what the packages take
MOST_ADDED = 1 << 20  # characters of the template's own; what was said may stand in the text twice


def lay_out(question: Mapping[str, Any]) -> dict[str, str]:
    """`text` of the conversation in `messages` by `template`, with the special `tokens` it knows; `error` where it has
    none."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = question["messages"]
    try:
        rendered: Any = render_jinja_template(  # a pair, whatever its annotation says
            conversations=[messages],
            chat_template=question["template"],
            add_generation_prompt=True,
            **question["tokens"],
        )
    except Exception as error:  # whatever a template does is said, not raised
        return {"error": str(error) or type(error).__name__}
    text = str(rendered[0][0])
    if len(text) > MOST_ADDED + 2 * sum(len(message["content"]) for message in messages):
        return {"error": "its text is longer than twice what was said"}
    return {"text": text}


def main() -> None:
    """Answers to the end of the input."""
    import transformers.utils.chat_template_utils  # noqa: F401 - seconds, which are not the first conversation's

    _bound_memory()
    _write({})
    for line in sys.stdin.buffer:
        signal.alarm(2 * SECONDS)  # should the daemon be gone, which ends this process sooner
        _write(lay_out(parse_json(line)))
        signal.alarm(0)


def _write(answer: Mapping[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.flush()


def _bound_memory() -> None:
    """What it has, and MEMORY more; where the system does not tell, the time is the only bound."""
    import resource

    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
