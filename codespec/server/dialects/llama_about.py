"""What llama.cpp's clients ask about the server and its model: /health, /props, /tokenize, /detokenize.

Knows their fields; completes nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from aiohttp import web

from codespec import __version__
from codespec.server.chat import find_chat_template
from codespec.server.daemon import DAEMON
from codespec.server.wire import read_fields, reply

MOST_CONTENT = 1 << 18  # characters: some tenths of a second


async def health(request: web.Request) -> web.StreamResponse:
    """Ready, with which models and in which mode, and what can't be written; or 503 and how far it is."""
    daemon = request.app[DAEMON]
    loaded = daemon.loaded()
    better = {"model": loaded.offer.name, "bytes": loaded.offer.size} if loaded.offer else None
    models: dict[str, Any] = {"model": loaded.model, "target": loaded.name, "drafter": loaded.drafter, "offer": better}
    models["names"] = loaded.names
    engine = {"mode": loaded.engine.mode, "notes": loaded.engine.notes, "warning": daemon.warning}
    return reply({"status": "ok", "version": __version__, "open": daemon.num_open, **models, **engine})


async def props(request: web.Request) -> web.StreamResponse:
    """What llama.cpp's clients ask about the server."""
    loaded = request.app[DAEMON].loaded()
    return reply(
        {
            "default_generation_settings": {"n_ctx": loaded.context, "params": {"n_predict": 128}},
            "total_slots": loaded.slots,
            "model_alias": loaded.name,
            "model_path": loaded.name,
            "chat_template": find_chat_template(loaded.engine.target.tokenizer),
            "build_info": f"codespec {__version__}",
            "caches": {name: asdict(use) for name, use in loaded.engine.caches.items()},
        }
    )


async def tokenize(request: web.Request) -> web.StreamResponse:
    """The target's ids of a text, found beside the rounds of those who wait for theirs."""
    daemon = request.app[DAEMON]
    tokenizer = daemon.loaded().engine.target.tokenizer
    with await read_fields(request) as fields:
        text = fields.text("content", most=MOST_CONTENT)
        start = list(tokenizer.bos_ids) if fields.flag("add_special") else []
    async with daemon.encoding:
        return reply({"tokens": start + await asyncio.to_thread(tokenizer.encode, text)})


async def detokenize(request: web.Request) -> web.StreamResponse:
    """The text of the target's ids; control tokens have none."""
    tokenizer = request.app[DAEMON].loaded().engine.target.tokenizer
    with await read_fields(request) as fields:
        ids = fields.ids("tokens", len(tokenizer.token_bytes))
    return reply({"content": tokenizer.decode_bytes(ids).decode("utf-8", "replace")})


ROUTES = [
    web.post("/detokenize", detokenize),
    web.get("/health", health),
    web.get("/props", props),
    web.post("/tokenize", tokenize),
]
