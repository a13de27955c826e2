"""Checks of `codespec doctor` for the daemon, and a short completion by the daemon or an engine in this process."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from codespec import __version__
from codespec.api.config import EngineConfig, check_bind, resolve_serve
from codespec.api.types import CompletionRequest
from codespec.cli.machine_checks import Seen, needed_bytes
from codespec.cli.options import Address, address_of
from codespec.cli.parts import find_back_end
from codespec.errors import DaemonError, Finding, State, failed, warning, well
from codespec.user_folders import named_path, read_token

if TYPE_CHECKING:
    from codespec.engine.engine import Engine

TOKENS = 24
MAX_BYTES = 4e9  # memory of the largest engine that the doctor loads; larger models take minutes to load
PROBE_SECONDS = 60.0  # timeout between two events of a daemon, which may be busy
PROMPT = """class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def add(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def subtract(self, other):
        return Point(self.x - other.x, self.y - other.y)

    def scale(self, factor):
        return Point("""
DIFFER = "report it, with the output of `codespec check`"
OTHER_PORT = "stop it, or choose another port (`codespec serve --port`, then --url here; or port in [serve] for both)"
STATES: dict[str, tuple[State, str]] = {
    "starting": ("warning", "wait a moment, or read the output of `codespec serve`"),
    "stopping": ("warning", "start the daemon again after it has exited"),
    "failed": ("failed", "fix that and restart it"),
    "stopped": ("failed", "restart it"),
}


def check_serve(seen: Seen) -> Iterable[Finding]:
    """Resolve the daemon's settings and address. Returns no findings, but raises ConfigError for invalid settings."""
    names, options = ("token_file", "upstream", "upstream_token_file", "upstream_model"), seen.options
    serve = resolve_serve({name: getattr(options, name) for name in names}, options.config)
    seen.serve, seen.address = serve, address_of(options.url, serve.host, serve.port, "")
    if serve.upstream:
        seen.config = None
    return ()


def check_token(seen: Seen) -> Iterator[Finding]:
    """Check that a token is set if the daemon's host requires one, and that only this user can read the token file."""
    if seen.serve is None or seen.address is None:
        return
    name = seen.serve.token_file
    token = read_token(name)
    seen.address = replace(seen.address, token=token)
    check_bind(seen.serve.host, token)
    if name and (file := named_path(name)).stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield warning("token", f"others on this machine can read {file}", f"run `chmod 600 {file}`")
    else:
        yield well("token", "required" if token else "not required; only this machine can reach the daemon")


def check_port(seen: Seen) -> Iterator[Finding]:
    """Identify the program that listens at the daemon's address."""
    if seen.address is None:
        return
    seen.found, url = seen.address.look(), seen.address.url
    stranger = "is used by another HTTP server, or by a daemon that can't prove that it is yours"
    yield {
        "daemon": well("port", f"your daemon listens on {url}"),
        "locked": warning("port", f"a daemon on {url} requires its token", "give --token-file"),
        "stranger": failed("port", f"{url} {stranger}", OTHER_PORT),
        "silent": failed("port", f"{url} is used by a program that does not speak HTTP", OTHER_PORT),
        "nobody": well("port", f"{url} is free"),
    }[seen.found.who]


def check_upstream(seen: Seen) -> Iterator[Finding]:
    """Check the server that `serve --upstream` forwards requests to."""
    if seen.serve is not None and seen.upstream:
        yield from find_back_end().check(seen.serve)


def check_daemon(seen: Seen) -> Iterator[Finding]:
    """Check the daemon's version and state, and warn if the daemon has found that exact mode does not hold."""
    if seen.found is None:
        return
    if not seen.daemon:
        nobody = seen.found.who == "nobody"
        yield well("daemon", "none runs; `codespec serve` or an editor starts one" if nobody else "not checked")
        return
    version, state, model, reason = (seen.daemon.get(name) for name in ("version", "state", "model", "reason"))
    if version != __version__:
        yield warning("version", f"the daemon is codespec {version}, this is {__version__}", "restart the daemon")
    if state == "ready":
        context, tokens = seen.daemon.get("context"), seen.daemon.get("prompt_budget")
        is_cut = isinstance(context, int) and isinstance(tokens, int) and tokens < context
        cut = f"; reads {tokens:,} tokens of a new document (first_answer_ms), context {context:,}" if is_cut else ""
        yield well("daemon", f"ready, model {model}{cut}")
    elif state == "idle":
        yield well("daemon", f"idle ({reason}), model {model}; the next request loads it")
    else:
        severity, fix = STATES.get(str(state), ("failed", "restart it"))
        yield Finding("daemon", severity, f"{state} ({reason})" if reason else str(state), fix)
    if variance := seen.daemon.get("variance"):
        yield varying(str(variance))


def check_probe(seen: Seen) -> Iterator[Finding]:
    """Complete a short text with and without speculation, and compare the results."""
    if seen.options.no_probe:
        return
    if seen.address is not None and seen.daemon.get("state") in ("ready", "idle"):
        yield _probe_daemon(seen.address)
    elif seen.upstream:
        return
    elif seen.config is None or seen.target is None or not (seen.packages and seen.fits):
        yield well("probe", "not tried: fix the failed checks above first")
    else:
        small = replace(seen.config, max_batch=1, cache_mb=0, learn=False, policy="fixed", draft_tokens=4, warmup=0)
        if needed_bytes(small, seen.target, seen.drafter)[1] <= MAX_BYTES:
            yield from _probe_engine(small, seen.config)
        else:
            yield well("probe", "not tried, because loading would take long: start the daemon and run doctor again")


def _probe_daemon(address: Address) -> Finding:
    body, began = {"prefix": PROMPT, "path": "point.py", "shape": "raw", "max_tokens": TOKENS}, time.perf_counter()

    def complete(speculate: bool) -> str:
        events = address.stream({**body, "speculate": speculate}, PROBE_SECONDS)
        return "".join(value["text"] for name, value in events if name == "text")

    try:
        on, off = complete(speculate=True), complete(speculate=False)
    except DaemonError as error:
        fix = "read its output, or restart it"
        return failed("probe", f"the daemon did not complete a short text ({error})", fix)
    if on != off:
        return failed("probe", "the daemon's text with speculation differs from its text without", DIFFER)
    return well("probe", f"the daemon wrote {len(on)} characters twice, equal, in {_since(began)}")


def _probe_engine(small: EngineConfig, config: EngineConfig) -> Iterator[Finding]:
    from codespec.engine.engine import Engine

    began = time.perf_counter()
    engine = Engine.build(small)
    request = CompletionRequest(prefix=PROMPT, path="point.py", max_tokens=TOKENS)
    on, off = (engine.complete([replace(request, speculate=value)])[0] for value in (True, False))
    if on.token_ids == off.token_ids:
        drafted = f"{on.stats.accepted} of {on.stats.drafted} drafted accepted"
        yield well("probe", f"{TOKENS} tokens twice, equal ({drafted}), in {_since(began)} with loading")
    elif config.mode == "fast":
        message = "speculation changed a short text, which fast mode allows"
        yield warning("probe", message, 'set mode = "exact" to prevent that')
    else:
        yield failed("probe", "speculation changed a short text in exact mode", DIFFER)
    yield check_prompts(engine, config)
    yield _check_arithmetic(engine, small)


def check_prompts(engine: Engine, config: EngineConfig) -> Finding:
    """Measure again whether a prompt of the maximum allowed length is completed within `first_answer_ms`."""
    from codespec.startup.parts import target_context
    from codespec.startup.tuning import measure_again, prompt_budget

    context, reading = target_context(engine.target, config), measure_again(engine.target, [])
    tokens = prompt_budget(reading, config.first_answer_ms, context)
    takes = round(reading.answer(tokens) * 1000)
    message = f"a new document's prompt may take {tokens:,} of the context's {context:,} tokens, answered in {takes} ms"
    if tokens == context or takes <= config.first_answer_ms:
        return well("prompts", message)
    fix = "close busy programs and run doctor again, or choose a smaller target"
    return warning("prompts", f"{message}: later than first_answer_ms even with the minimum number of tokens", fix)


def _check_arithmetic(engine: Engine, config: EngineConfig) -> Finding:
    """Report whether exact mode holds, according to the engine's own test at startup."""
    if config.mode == "fast":
        message = "fast mode is set, so texts may differ at near-ties; exact mode was not tried"
        return well("arithmetic", message)
    if engine.mode == "fast":
        return varying(engine.variance)
    model = engine.target
    if not model.checked:
        return well("arithmetic", f"exact mode holds by construction: {model.kernel}")
    from codespec.backends.torch.model import TorchModel
    from codespec.startup.batch_invariance import affordable

    assert isinstance(model, TorchModel)
    return well("arithmetic", f"exact mode holds: {affordable(model)[0]} tokens are equal in chunks and at once")


def varying(variance: str) -> Finding:
    """Return the warning that exact mode does not hold, for the reason `variance`."""
    message = f"exact mode does not hold here ({variance}), so texts may differ at near-ties"
    return warning("arithmetic", message, 'set mode = "fast" to accept that, or report it')


def _since(began: float) -> str:
    return f"{(time.perf_counter() - began) * 1000:.0f} ms"
