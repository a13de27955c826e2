"""Access control for the daemon, and its proof to clients that it belongs to their user.

The daemon answers only its own machine, under its own host name, and no web page of another origin; other machines need
the token or a key. A client can request a proof before it sends a token or a text (`codespec.proof`).
"""

from __future__ import annotations

import hmac
import re
import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec import proof
from codespec.contract.serve_config import is_loopback
from codespec.errors import ConfigError, RequestError
from codespec.server.accounts import OWNER, Keyring
from codespec.server.audit_log import CALL, Call
from codespec.server.wire import Refused, read_fields, route_of

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
MOST_PROOF_BODY = 256  # bytes; any client may send a request
PROOF_KEYS: web.AppKey[proof.Keys] = web.AppKey("keys", proof.Keys)
ALIVE = "/health"  # without Authorization it reports only that the process lives
METRICS, RELOAD = "/metrics", "/v1/codespec/reload"
OF_OWNER = frozenset({METRICS, RELOAD})  # routes that no key opens


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the daemon: the owner by the `token`, others by a key, a scraper of metrics by its own token.

    Without a token and without keys, everyone may who can connect.
    """

    token: str = ""
    metrics_token: str = ""
    keyring: Keyring | None = None

    @property
    def is_open(self) -> bool:
        """Whether no token is needed."""
        return not self.token and self.keyring is None

    def identify(self, request: web.Request, call: Call) -> None:
        """Set whose request it is. Raise Refused if a token is missing, or opens other routes only."""
        given, route = _bearer(request), route_of(request)
        if _is_same(given, self.token):
            call.is_owner = True
            call.name, call.account = (OWNER, self.keyring.owner) if self.keyring else (OWNER, None)
        elif route == METRICS and _is_same(given, self.metrics_token):
            call.name = "metrics"
        elif self.keyring is not None and (account := self.keyring.find(given)):
            call.name, call.account = account.name, account
            if route in OF_OWNER:
                raise Refused(f"{route} needs the owner's token: a key does not open it.", "Authorization", 403)
        elif self.is_open and not (route == METRICS and self.metrics_token):
            call.is_owner = _is_by_socket(request)
            if route == RELOAD and not call.is_owner:
                sentence = "Authorization lacks the owner's token (or the request the daemon's own socket): set one."
                raise Refused(sentence, "Authorization", 403)
        else:
            raise Refused("Authorization lacks the daemon's token: send it as a Bearer token.", "Authorization", 401)


def guard(host: str, access: Access, open_paths: Collection[str] = ()) -> Middleware:
    """Return a middleware that refuses foreign hosts and origins, and requests without a token or beyond its limits.

    `open_paths` (routes) need no token.
    """
    names = {*LOCAL_NAMES, host.lower(), f"[{host}]".lower()} if is_loopback(host) else None

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if names is not None:
            _check_host(request, names)
        _check_origin(request)
        call, route = request[CALL], route_of(request)
        if route == ALIVE and not access.is_open and "Authorization" not in request.headers:
            return web.json_response({"status": "alive"})
        if route not in open_paths:
            access.identify(request, call)
        if call.account is not None and request.method == "POST":
            call.account.count_request()
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


def _bearer(request: web.Request) -> str:
    """Return the Bearer token of a request, or ""."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _is_same(given: str, token: str) -> bool:
    """Return whether a token is given; False if there is none. The time does not depend on how much is right."""
    return bool(token) and hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _is_by_socket(request: web.Request) -> bool:
    """Return whether a request came by the Unix socket, which only the daemon's user can open."""
    own = None if request.transport is None else request.transport.get_extra_info("socket")
    return own is not None and own.family == getattr(socket, "AF_UNIX", None)


async def prove(request: web.Request) -> web.Response:
    """Answer a nonce with the daemon's proof for the address that the connection arrived at."""
    if request.content_length is None or request.content_length > MOST_PROOF_BODY:
        raise Refused(f"The body must be one of at most {MOST_PROOF_BODY} bytes: send a nonce alone.", "body", 413)
    with await read_fields(request) as fields:
        fields.only(("nonce", "key"))
        nonce = fields.text("nonce", most=2 * proof.NONCE_BYTES)
        key_id = fields.text("key", "", most=proof.KEY_ID)
    if not re.fullmatch(rf"[0-9a-f]{{{2 * proof.NONCE_BYTES}}}", nonce):
        raise RequestError(f"nonce must be {2 * proof.NONCE_BYTES} hexadecimal digits.", "nonce")
    at = proof.address_of(None if request.transport is None else request.transport.get_extra_info("sockname"))
    keys, keyring = request.app[PROOF_KEYS], request.app.get(ACCESS, Access()).keyring
    if keyring is not None and (key_hash := keyring.hash_by_id(key_id)):
        keys = replace(keys, key=proof.from_key_hash(key_hash))
    return web.json_response(proof.answer(keys, bytes.fromhex(nonce), at))


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


ACCESS: web.AppKey[Access] = web.AppKey("access", Access)
PROOF_ROUTES = [web.post(proof.PATH, prove)]
PROOF_PATHS = frozenset({proof.PATH})  # open: clients request the proof before they send the token
