"""Run all checks of `codespec doctor` in order. A failed check skips only the checks that depend on it."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator

from codespec.cli.checks import daemon, engine, machine, models
from codespec.cli.daemon_call import Address, address_of
from codespec.cli.options import choose_config
from codespec.cli.parts import find_back_end
from codespec.contract.engine_config import EngineConfig
from codespec.contract.levels import Settings
from codespec.contract.serve_config import ServeConfig, resolve_serve
from codespec.errors import ConfigError, Finding, from_fault, well
from codespec.pair.facts import ModelFacts
from codespec.pair.report import check_fill_in
from codespec.store.choice import ModelChoice, offer_note
from codespec.user_folders import read_token

Sides = tuple[ModelFacts, ModelFacts | None]


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    """Yield every finding as soon as it is made."""
    yield machine.check_python()
    config = yield from _engine_settings(options)
    serve, address = yield from _daemon_settings(options)
    found, sides = None, None
    try:
        found = address.look() if address is not None else None
    except ConfigError as error:
        yield from_fault("daemon", error.fault)
    answers = found is not None and found.who == "daemon"
    ready = found.daemon if found is not None and answers and found.daemon["state"] in ("ready", "idle") else None
    in_memory = ready is not None and ready["state"] == "ready"
    upstream = serve is not None and bool(serve.upstream)
    if serve is not None and upstream:
        yield from _upstream(serve)
    else:
        sides = yield from _engine(config, in_memory=in_memory, needed=not answers)
    yield from machine.check_folders()
    if serve is not None:
        yield daemon.check_token(serve)
    if address is not None and found is not None:
        yield daemon.check_port(address, found)
        yield from daemon.check_daemon(found)
    if ready and not ready.get("upstream"):
        yield daemon.check_daemon_arithmetic(ready)
    if options.no_probe:
        return
    if ready and address is not None:
        yield daemon.probe_daemon(address)
    elif config is not None and sides is not None:
        yield from engine.probe_engine(config, *sides)
    elif not upstream:
        yield well("probe", "not tried: fix the failed checks above first")


def _engine_settings(options: argparse.Namespace) -> Generator[Finding, None, EngineConfig | None]:
    """Check the engine's settings, and return them if they are valid."""
    try:
        choice = choose_config(options)
        yield from (Finding("settings", "warning", note) for note in choice.notes)
        if not choice.notes:
            yield well("settings", _where_from(options.config))
        yield well("model", _model(choice))
    except ConfigError as error:
        yield from_fault("settings", error.fault)
        return None
    return choice.config


def _daemon_settings(
    options: argparse.Namespace,
) -> Generator[Finding, None, tuple[ServeConfig | None, Address | None]]:
    """Check the daemon's settings, and return them and the daemon's address if they are valid."""
    serve = None
    try:
        notes: list[str] = []
        names = ("token_file", "upstream", "upstream_token_file", "upstream_model")
        serve = resolve_serve({name: getattr(options, name) for name in names}, options.config, notes=notes)
        yield from (Finding("serve", "warning", note) for note in notes)
        return serve, address_of(options.url, serve.host, serve.port, _token(serve))
    except ConfigError as error:
        yield from_fault("serve", error.fault)
    return serve, None


def _where_from(settings: Settings) -> str:
    if settings.file is None:
        return "defaults, variables and flags"
    return f"read from {settings.file}" + (" (your own)" if settings.is_own else "")


def _model(choice: ModelChoice) -> str:
    """Return which model was chosen and why, and the better one to pull instead of the starter pair."""
    if note := offer_note(choice.config):
        return f"starter, since {choice.why}; {note}"
    return f"{choice.config.model}, {choice.why}" if choice.config.model else choice.why


def _token(serve: ServeConfig) -> str:
    """Return the token, or "" if it can't be read; `check_token` reports why."""
    try:
        return read_token(serve.token_file)
    except ConfigError:
        return ""


def _engine(config: EngineConfig | None, *, in_memory: bool, needed: bool) -> Generator[Finding, None, Sides | None]:
    """Check packages, models and machine. Return the models if an engine can be loaded here to try them.

    `in_memory` means that a daemon has loaded them.
    """
    packages = False
    for finding in machine.check_packages(config, needed):
        packages = finding.state == "ok"
        yield finding
    if config is None:
        return None
    found, target = models.check_model("target", config.target)
    yield found
    found, drafter = models.check_drafter(config)
    yield found
    if target is not None:
        yield from models.check_together(target, drafter) if drafter is not None else ()
        yield check_fill_in(target)
    yield from machine.check_processor(config)
    if packages:
        yield from machine.check_device(config)
        yield from engine.check_kernels(config)
    if in_memory:
        yield well("memory", "the daemon has enough")
    elif target is not None and found.state == "ok":
        memory = models.check_memory(config, target, drafter if config.asks_drafter else None)
        yield memory
        return (target, drafter) if packages and memory.state != "failed" else None
    return None


def _upstream(serve: ServeConfig) -> Iterator[Finding]:
    try:
        yield from find_back_end().check(serve)
    except ConfigError as error:
        yield from_fault("upstream", error.fault)
