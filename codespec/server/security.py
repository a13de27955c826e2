"""Access control for the daemon, and its proof to clients that it belongs to their user.

The daemon answers only its own machine, under its own host name, and no web page of another origin; other machines need
the token. A client can request a proof before it sends a token or a text (`codespec.proof`).
"""

from __future__ import annotations

import hmac
import re
import sys
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec import proof
from codespec.contract.serve_config import is_loopback
from codespec.errors import ConfigError, RequestError
from codespec.server.wire import Refused, read_fields, route_of

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
MOST_PROOF_BODY = 256  # bytes; any client may send a request
PROOF_KEYS: web.AppKey[proof.Keys] = web.AppKey("keys", proof.Keys)


def guard(host: str, token: str, open_paths: Collection[str] = ()) -> Middleware:
    """Return a middleware that refuses foreign hosts and origins, and requests without the token.

    `open_paths` (routes) need no token.
    """
    names = {*LOCAL_NAMES, host.lower(), f"[{host}]".lower()} if is_loopback(host) else None

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if names is not None:
            _check_host(request, names)
        _check_origin(request)
        if token and route_of(request) not in open_paths:
            _check_token(request, token)
        return await handler(request)

    return check


def _check_host(request: web.Request, names: set[str]) -> None:
    """Refuse foreign host names. In DNS rebinding, the browser still sends the page's own host name."""
    host = request.headers.get("Host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in names:
        raise Refused("Host is refused (only localhost is answered): use 127.0.0.1 in the address.", "Host", 403)


def _check_origin(request: web.Request) -> None:
    """Refuse foreign origins. Browsers send the page's origin; only the daemon's own page may send requests."""
    origin = request.headers.get("Origin")
    own = (f"http://{request.headers.get('Host', '')}", f"https://{request.headers.get('Host', '')}")
    if origin is not None and origin.lower() not in (name.lower() for name in own):
        raise Refused("Origin is refused (a page from elsewhere): ask from an editor or a terminal.", "Origin", 403)


def _check_token(request: web.Request, token: str) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        raise Refused("Authorization lacks the daemon's token: send it as a Bearer token.", "Authorization", 401)


async def prove(request: web.Request) -> web.Response:
    """Answer a nonce with the daemon's proof for the address that the connection arrived at."""
    if request.content_length is None or request.content_length > MOST_PROOF_BODY:
        raise Refused(f"The body must be one of at most {MOST_PROOF_BODY} bytes: send a nonce alone.", "body", 413)
    with await read_fields(request) as fields:
        fields.only(("nonce",))
        nonce = fields.text("nonce", most=2 * proof.NONCE_BYTES)
    if not re.fullmatch(rf"[0-9a-f]{{{2 * proof.NONCE_BYTES}}}", nonce):
        raise RequestError(f"nonce must be {2 * proof.NONCE_BYTES} hexadecimal digits.", "nonce")
    at = proof.address_of(None if request.transport is None else request.transport.get_extra_info("sockname"))
    return web.json_response(proof.answer(request.app[PROOF_KEYS], bytes.fromhex(nonce), at))


def proof_keys(token: str) -> proof.Keys:
    """Return the keys for the daemon's proof.

    If the user's secret can't be used, print the reason and continue: clients that need no proof can still be served,
    and a token is a key too.
    """
    try:
        return proof.own_keys(token)
    except ConfigError as error:
        print(f"codespec: editors can't be sure of this daemon. {error}", file=sys.stderr, flush=True)
        return proof.Keys(None, proof.stretched(token))


PROOF_ROUTES = [web.post(proof.PATH, prove)]
PROOF_PATHS = frozenset({proof.PATH})  # open: clients request the proof before they send the token
