"""The process that runs the model's chat template, from the first conversation to the daemon's end. Knows how it is
asked and ended; knows no template and no dialect.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from codespec.bounded_json import parse_json
from codespec.errors import RequestError
from codespec.server.template_child import MOST_ADDED, SECONDS
from codespec.server.wire import MOST_BODY, clip
from codespec.token_file import TOKEN_VARIABLE

COMMAND = (sys.executable, "-P", "-m", "codespec.server.template_child")
START_SECONDS = 60.0  # its packages take one or two, on a busy machine ten
MOST_ANSWER = 12 * (2 * MOST_BODY + MOST_ADDED)  # bytes: twelve to a character outside the basic plane
_WRONG = "messages can't be laid out by the model's chat template"


class Templates:
    """One conversation at a time. The process is started by the first one, and again behind one that ended it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def lay_out(self, question: Mapping[str, Any]) -> str:
        """The text for a `question` as the process takes it. Raises RequestError on `messages`."""
        async with self._turn:
            answered = False
            try:
                answer = await self._ask(question)
                answered = True
            except TimeoutError as error:
                said = f"{_WRONG} (it takes longer than {SECONDS} s): use /v1/completions, or another model."
                raise RequestError(said, "messages") from error
            finally:
                if not answered:  # what it may still say would be taken for the next answer
                    await self.close()
        if "text" in answer:
            return str(answer["text"])
        raise RequestError(f"{_WRONG} ({clip(answer['error'], 200)}): change their roles or order.", "messages")

    async def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.communicate()

    async def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        process = await self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(SECONDS):
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
                answer: dict[str, Any] = parse_json(await process.stdout.readline())
        except (ConnectionError, ValueError) as error:  # it ended, or answered with more than any text has
            said = f"{_WRONG} (it ends the process that runs it): use /v1/completions, or another model."
            raise RequestError(said, "messages") from error
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            told = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={**told, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # each thread counts as memory
                limit=MOST_ANSWER,
            )
            assert self._process.stdout is not None
            async with asyncio.timeout(START_SECONDS):
                await self._process.stdout.readline()
        return self._process


TEMPLATES: web.AppKey[Templates] = web.AppKey("templates", Templates)


async def end_templates(app: web.Application) -> None:
    """For the application's end."""
    await app[TEMPLATES].close()
