"""Render conversations with the target's chat template, in a separate process (`chat_template_process`).

Only the template may write control tokens; `<|im_end|>` in a message must remain plain text. Before rendering,
placeholders replace the first characters of control tokens in the messages. The tokenizer restores the replaced
characters after it has split the rendered text at control tokens.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from codespec.api.limits import MAX_BODY
from codespec.errors import RequestError
from codespec.files import parse_json
from codespec.server.chat_template_process import MAX_ADDED, RENDER_TIMEOUT_S
from codespec.server.wire import clip
from codespec.text.tokenizer_json import token_content
from codespec.user_folders import TOKEN_VARIABLE

if TYPE_CHECKING:
    from codespec.text.tokenizer import TextTokenizer

COMMAND = (sys.executable, "-P", "-m", "codespec.server.chat_template_process")
START_TIMEOUT_S = 60.0  # its imports take one or two seconds, or ten on a busy machine
MAX_REPLY = 12 * (2 * MAX_BODY + MAX_ADDED)  # bytes: JSON takes up to twelve for a character
_WRONG = "messages can't be rendered by the model's chat template"
_FREE = (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF1000))  # placeholders: noncharacters, then private-use characters


class ChatMessage(NamedTuple):
    role: str
    content: str


def find_chat_template(tokenizer: TextTokenizer) -> str:
    """Return the model's chat template, or "" if it has none. Of several templates, return the one named `default`."""
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next(named, {}).get("template")
    return template if isinstance(template, str) else ""


def hide_control_tokens(
    tokenizer: TextTokenizer, conversation: Sequence[ChatMessage]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the input for the template process, and the placeholder of each replaced character."""
    placeholders = find_placeholders(tokenizer.control_starts, [message.content for message in conversation])
    table = str.maketrans(placeholders)
    messages = [{"role": message.role, "content": message.content.translate(table)} for message in conversation]
    named = {name: token_content(value) for name, value in tokenizer.config.items() if name.endswith("_token")}
    tokens = {name: content for name, content in named.items() if content}
    return {"template": find_chat_template(tokenizer), "messages": messages, "tokens": tokens}, placeholders


def encode_prompt(
    tokenizer: TextTokenizer, rendered: str, placeholders: Mapping[str, str]
) -> tuple[tuple[int, ...], str]:
    """Return the token ids of a rendered conversation, and the text of these tokens."""
    ids = tuple(tokenizer.encode_with_specials(rendered, placeholders))
    return ids, tokenizer.decode_bytes(ids).decode("utf-8", "replace")


def find_placeholders(hidden: frozenset[str], texts: Sequence[str]) -> dict[str, str]:
    """Map each of the `hidden` characters to its own placeholder, a character that none of the `texts` contains."""
    taken = set().union(*texts)
    free = [chr(code) for code in _FREE if chr(code) not in taken]
    if len(free) < len(hidden):
        raise RequestError("messages contain too many private-use characters: remove these characters.", "messages")
    return dict(zip(sorted(hidden), free, strict=False))


class ChatTemplates:
    """Renders one conversation at a time in a subprocess, which starts on first use and restarts after it is killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def render(self, conversation: Mapping[str, Any]) -> str:
        """Render a conversation that `hide_control_tokens` has prepared. Raise RequestError if the template fails."""
        async with self._lock:
            reply: dict[str, Any] = {}
            try:
                reply = await self._request(conversation)
            finally:
                if not reply:  # failed or cancelled: a late reply would be read as the next one
                    await self.close()
        if "text" in reply:
            return str(reply["text"])
        sentence = f"{_WRONG} ({clip(reply['error'], 200)}): change the roles of the messages or their order."
        raise RequestError(sentence, "messages")

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.communicate()

    async def _request(self, conversation: Mapping[str, Any]) -> dict[str, Any]:
        try:
            process = await self._running()
            assert process.stdin is not None and process.stdout is not None
            async with asyncio.timeout(RENDER_TIMEOUT_S):
                process.stdin.write(json.dumps(conversation).encode() + b"\n")
                await process.stdin.drain()
                reply: dict[str, Any] = parse_json(await process.stdout.readline())
                return reply
        except (TimeoutError, ConnectionError, ValueError) as error:  # ValueError: the reply is cut or too long
            late = isinstance(error, TimeoutError)
            why = f"the template takes longer than {RENDER_TIMEOUT_S} s" if late else "the template process crashed"
            raise RequestError(f"{_WRONG} ({why}): use /v1/completions or another model.", "messages") from error

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            inherited = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
            one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each thread counts as memory
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**inherited, **one_thread},
                limit=MAX_REPLY,
            )
            assert self._process.stdout is not None
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._process.stdout.readline()
        return self._process


CHAT_TEMPLATES: web.AppKey[ChatTemplates] = web.AppKey("chat_templates", ChatTemplates)
