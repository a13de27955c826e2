"""A process that renders conversations with a model's chat template, and answers each JSON line with a JSON line.

A chat template is a program that comes with the model. Jinja's sandbox denies access to files, but does not prevent
endless loops or the use of all memory. The process limits its own memory, and the daemon kills the process if a
template is too slow.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from codespec.files import parse_json

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_TIMEOUT_S = 5  # per conversation: real templates take a few milliseconds
MEMORY = 1 << 29  # bytes, in addition to those of the imported packages
MAX_ADDED = 1 << 20  # characters that a template may add to twice the messages


def render(conversation: Mapping[str, Any]) -> dict[str, str]:
    """Render a conversation's `messages` with its `template` and `tokens`. Return {"text": …} or {"error": …}."""
    messages = conversation["messages"]
    try:
        template = _environment().from_string(conversation["template"])
        text = template.render(messages=messages, add_generation_prompt=True, **conversation["tokens"])
    except Exception as error:  # a template can raise any exception
        return {"error": str(error) or type(error).__name__}
    if len(text) > MAX_ADDED + 2 * sum(len(message["content"]) for message in messages):
        return {"error": "its text is longer than twice the messages"}
    return {"text": text}


def main() -> None:
    from codespec_grammars.workers import bound_memory

    _environment()  # imports Jinja before the memory is limited
    bound_memory(MEMORY)
    _write({})
    for line in sys.stdin.buffer:
        signal.alarm(2 * RENDER_TIMEOUT_S)  # if the daemon, which kills this process sooner, is gone
        _write(render(parse_json(line)))
        signal.alarm(0)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """Return a sandbox with the extensions and functions that transformers offers to templates."""
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """Renders the content of `{% generation %}`, a tag that marks the model's own text in training data."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, **options: Any) -> str:  # Jinja's own filter escapes HTML
        return json.dumps(value, **{"ensure_ascii": False, **options})

    def now(form: str) -> str:
        return datetime.now().strftime(form)

    class PublicNamespace(Namespace):
        """A namespace that refuses names with a leading underscore, like attributes in Jinja's sandbox."""

        def __init__(self, *pairs: Any, **values: Any) -> None:
            super().__init__()
            for name, value in dict(*pairs, **values).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                refuse(f"{name} can't be set: names in a namespace begin with a letter")
            super().__setitem__(name, value)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals |= {"raise_exception": refuse, "strftime_now": now, "namespace": PublicNamespace}
    return made


def _write(reply: Mapping[str, str]) -> None:
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
