"""Who may talk to the daemon: its own machine, by its own name, from no foreign page; elsewhere only with the token.

Knows headers and addresses; knows no bodies. Of a request only its method, route, status and time are ever logged.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from codespec.errors import CodespecError, ServeError
from codespec.server.access import is_loopback
from codespec.server.logs import log, log_failure
from codespec.server.wire import Refused, error_reply

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
HTTP_ERRORS = {
    404: ("path", "docs/clients.md lists the endpoints"),
    405: ("method", "use one that Allow names"),
}


def guard(host: str, token: str, open_paths: Collection[str] = ()) -> Middleware:
    """Refuses foreign hosts and pages, and whoever lacks the token, which `open_paths` (routes) do without."""
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
    """A page that points its own name at this machine (DNS rebinding) still says that name."""
    host = request.headers.get("Host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in names:
        raise Refused("Host is refused (only localhost is answered): use 127.0.0.1 in the address.", "Host", 403)


def _check_origin(request: web.Request) -> None:
    """Browsers say where a page comes from; only this daemon's own pages may ask."""
    origin = request.headers.get("Origin")
    own = (f"http://{request.headers.get('Host', '')}", f"https://{request.headers.get('Host', '')}")
    if origin is not None and origin.lower() not in (name.lower() for name in own):
        raise Refused("Origin is refused (a page from elsewhere): ask from an editor or a terminal.", "Origin", 403)


def _check_token(request: web.Request, token: str) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    given = given.strip() if scheme.lower() == "bearer" else ""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        raise Refused("Authorization lacks the daemon's token: send it as a Bearer token.", "Authorization", 401)


def answer_errors() -> Middleware:
    """Turns whatever goes wrong into one sentence as JSON."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except CodespecError as error:
            return error_reply(error)
        except web.HTTPException as error:
            return _from_http(error)
        except ConnectionResetError:
            raise
        except Exception as error:  # the process border: the client gets one sentence, the log the kind
            log_failure(f"{route_of(request)} failed", error)
            return error_reply(ServeError(f"The daemon failed here ({type(error).__name__}): please report it.", 500))

    return answer


def log_access() -> Middleware:
    """One line a request: method, route, status, milliseconds. Never a query, a header or a body."""

    @web.middleware
    async def access(request: web.Request, handler: Handler) -> web.StreamResponse:
        begun, status = time.perf_counter(), 499
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            spent = (time.perf_counter() - begun) * 1000
            log.info("%s %s %d %.0f ms", request.method[:8], route_of(request), status, spent)

    return access


def route_of(request: web.Request) -> str:
    """The route's own pattern, which holds nothing of the client's; "-" where there is none."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "-"


def _from_http(error: web.HTTPException) -> web.Response:
    field, mend = HTTP_ERRORS.get(error.status, ("request", "mend it"))
    response = error_reply(Refused(f"{field} is refused ({error.reason}): {mend}.", field, error.status))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
