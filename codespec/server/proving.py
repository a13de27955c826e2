"""Where a client asks for the daemon's proof, before it sends a token or a text. Knows the question; what is proven,
and how, is `codespec.proof`'s.
"""

from __future__ import annotations

import re
import sys

from aiohttp import web

from codespec import proof
from codespec.errors import ConfigError, RequestError
from codespec.server.wire import Refused, read_fields

MOST_BODY = 256  # bytes: strangers may ask


async def prove(request: web.Request) -> web.Response:
    """Answers for the address that the connection came to."""
    if request.content_length is None or request.content_length > MOST_BODY:
        raise Refused(f"The body must be one of at most {MOST_BODY} bytes: send a nonce alone.", "body", 413)
    with await read_fields(request) as fields:
        fields.only(("nonce",))
        nonce = fields.text("nonce", most=2 * proof.NONCE_BYTES)
    if not re.fullmatch(rf"[0-9a-f]{{{2 * proof.NONCE_BYTES}}}", nonce):
        raise RequestError(f"nonce must be {2 * proof.NONCE_BYTES} hexadecimal digits.", "nonce")
    at = proof.address_of(None if request.transport is None else request.transport.get_extra_info("sockname"))
    return web.json_response(proof.answer(request.app[KEYS], bytes.fromhex(nonce), at))


def keys_of(token: str) -> proof.Keys:
    """What this daemon proves itself by. Where the user's secret can't be used it says so and goes on: clients that
    need no proof are served, and a token is one too."""
    try:
        return proof.own_keys(token)
    except ConfigError as error:
        print(f"codespec: editors can't be sure of this daemon. {error}", file=sys.stderr, flush=True)
        return proof.Keys(None, proof.stretched(token))


KEYS: web.AppKey[proof.Keys] = web.AppKey("keys", proof.Keys)
ROUTES = [web.post(proof.PATH, prove)]
# It is asked before the token is sent.
OPEN_PATHS = frozenset({proof.PATH})
