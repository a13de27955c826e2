"""Check the daemon: its settings and token, the program on its port, its state, and a text that it completes twice."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator

from codespec import __version__
from codespec.api.serve_config import check_bind, resolve_serve
from codespec.cli.checks.engine import ARITHMETIC, DIFFER, FAST_SET, PROMPT, TOKENS, milliseconds, varying
from codespec.cli.checks.seen import Seen
from codespec.cli.daemon_call import address_of
from codespec.cli.parts import find_back_end
from codespec.errors import ConfigError, DaemonError, Finding, State, failed, warning, well
from codespec.user_folders import named_path, read_token

PROBE_SECONDS = 60.0  # for a daemon that is busy
OTHER_PORT = "stop it, or choose another port (`codespec serve --port`, then --url here; or port in [serve] for both)"
STATES: dict[str, tuple[State, str]] = {
    "starting": ("warning", "wait a moment, or read the output of `codespec serve`"),
    "stopping": ("warning", "start it again when it has ended"),
    "failed": ("failed", "fix that and restart it"),
    "stopped": ("failed", "restart it"),
}


def check_settings(seen: Seen) -> Iterator[Finding]:
    """Check the daemon's settings, and find its address."""
    notes: list[str] = []
    names, options = ("token_file", "upstream", "upstream_token_file", "upstream_model"), seen.options
    serve = resolve_serve({name: getattr(options, name) for name in names}, options.config, notes)
    seen.serve = serve
    yield from (Finding("serve", "warning", note) for note in notes)
    try:
        token = read_token(serve.token_file)
    except ConfigError:  # `check_token` reports why
        token = ""
    seen.address = address_of(options.url, serve.host, serve.port, token)


def look(seen: Seen) -> Iterator[Finding]:
    """Identify the program at the daemon's address."""
    assert seen.address is not None
    seen.found = seen.address.look()
    yield from ()


def check_upstream(seen: Seen) -> Iterator[Finding]:
    """Check the server that writes the text."""
    assert seen.serve is not None
    yield from find_back_end().check(seen.serve)


def check_token(seen: Seen) -> Iterator[Finding]:
    """Check that a token is set if one is required, and that only the user can read its file."""
    assert seen.serve is not None
    name = seen.serve.token_file
    token = read_token(name)
    check_bind(seen.serve.host, token)
    if name and named_path(name).stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        file = named_path(name)
        yield warning("token", f"others on this machine can read {file}", f"run `chmod 600 {file}`")
    else:
        yield well("token", "required" if token else "not required; only this machine can reach the daemon")


def check_port(seen: Seen) -> Iterator[Finding]:
    """Report which program listens at the address."""
    assert seen.address is not None and seen.found is not None
    url = seen.address.url
    stranger = "is used by another HTTP server, or by a daemon that can't prove that it is yours"
    yield {
        "daemon": well("port", f"your daemon listens on {url}"),
        "locked": warning("port", f"a daemon on {url} requires its token", "give --token-file"),
        "stranger": failed("port", f"{url} {stranger}", OTHER_PORT),
        "silent": failed("port", f"{url} is used by a program that does not speak HTTP", OTHER_PORT),
        "nobody": well("port", f"{url} is free"),
    }[seen.found.who]


def check_daemon(seen: Seen) -> Iterator[Finding]:
    """Check the daemon's state and version."""
    daemon = seen.daemon
    if daemon is None:
        nobody = seen.found is not None and seen.found.who == "nobody"
        yield well("daemon", "none runs; `codespec serve` or an editor starts one" if nobody else "not checked")
        return
    version, state, model, reason = (daemon.get(name) for name in ("version", "state", "model", "reason"))
    if version != __version__:
        yield warning("version", f"the daemon is codespec {version}, this is {__version__}", "restart the daemon")
    if state == "ready":
        context, tokens = daemon.get("context"), daemon.get("prompt_budget")
        is_cut = isinstance(context, int) and isinstance(tokens, int) and tokens < context
        cut = f"; reads {tokens:,} tokens of a new document (first_answer_ms), context {context:,}" if is_cut else ""
        yield well("daemon", f"ready, model {model}{cut}")
    elif state == "idle":
        yield well("daemon", f"idle ({reason}), model {model}; the next request loads it")
    else:
        severity, fix = STATES.get(str(state), ("failed", "restart it"))
        yield Finding("daemon", severity, f"{state} ({reason})" if reason else str(state), fix)


def check_arithmetic(seen: Seen) -> Iterator[Finding]:
    """Report the result of a daemon, which tests its models at startup and compares texts in idle time."""
    daemon = seen.daemon
    assert daemon is not None
    if variance := daemon.get("variance"):
        yield varying(str(variance))
    elif not daemon.get("upstream"):
        yield well(ARITHMETIC, FAST_SET if daemon.get("mode") == "fast" else "the daemon is in exact mode")


def probe(seen: Seen) -> Iterator[Finding]:
    """Complete a short text twice on the daemon, with and without speculation."""
    assert seen.address is not None
    body, began = {"prefix": PROMPT, "path": "point.py", "shape": "raw", "max_tokens": TOKENS}, time.perf_counter()
    try:
        on, off = (seen.address.complete({**body, "speculate": value}, PROBE_SECONDS) for value in (True, False))
    except DaemonError as error:
        fix = "read its output, or restart it"
        yield failed("probe", f"the daemon did not complete a short text ({error})", fix)
        return
    if on != off:
        yield failed("probe", "the daemon writes another text with speculation than without", DIFFER)
    else:
        yield well("probe", f"the daemon wrote {len(on)} characters twice, equal, in {milliseconds(began)}")
