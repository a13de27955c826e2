"""Run all checks in order. A failed check skips only the checks that depend on it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from codespec.cli.checks import daemon, engine, machine, models
from codespec.cli.daemon_call import Address, address_of
from codespec.cli.options import choose_config
from codespec.cli.parts import find_back_end
from codespec.client.daemon_client import Found
from codespec.contract.engine_config import EngineConfig
from codespec.contract.levels import user_file
from codespec.contract.serve_config import ServeConfig, resolve_serve
from codespec.errors import ConfigError
from codespec.finding import Finding, from_fault, well
from codespec.pair.facts import ModelFacts
from codespec.pair.report import check_fill_in
from codespec.store.choice import ModelChoice, offer_note
from codespec.token_file import read_token


@dataclass(slots=True)
class Known:
    """Results of earlier checks for later ones; None if unknown."""

    config: EngineConfig | None = None
    serve: ServeConfig | None = None
    address: Address | None = None
    found: Found | None = None
    target: ModelFacts | None = None
    drafter: ModelFacts | None = None
    whole: bool = False  # all configured models can be used
    packages: bool = False
    room: bool = False  # the models fit into memory

    @property
    def served(self) -> bool:
        """Whether a daemon is ready."""
        return self.found is not None and self.found.who == "daemon" and self.found.daemon["state"] == "ready"

    @property
    def kernel(self) -> str:
        """The int8 kernel that a ready daemon reports, or ""."""
        return str(self.found.daemon.get("kernel") or "") if self.found is not None and self.served else ""


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    """Yield every finding as soon as it is made."""
    known = Known()
    yield machine.check_python()
    yield from _settings(options, known)
    yield from _look(known)
    if known.serve is not None and known.serve.upstream:
        yield from _upstream(known.serve)
        yield from _daemon(known)
        if known.served and not options.no_probe:
            yield from _probe(known)
        return
    for finding in machine.check_packages(known.config, needed=known.found is None or known.found.who != "daemon"):
        known.packages = finding.state == "ok"
        yield finding
    if known.config is not None:
        yield from _models(known.config, known)
        yield from _machine(known.config, known)
    yield from _daemon(known)
    if not options.no_probe:
        yield from _probe(known)


def _look(known: Known) -> Iterator[Finding]:
    """Look up the program at the daemon's address. Yield a finding only if that fails."""
    try:
        known.found = known.address.look() if known.address is not None else None
    except ConfigError as error:
        yield from_fault("daemon", error.fault)


def _settings(options: argparse.Namespace, known: Known) -> Iterator[Finding]:
    """Check the settings of the engine and of the daemon separately, because either can be invalid."""
    try:
        own = None if options.config else user_file()
        choice = choose_config(options)
        known.config = choice.config
        yield from (Finding("settings", "warning", note) for note in choice.notes)
        if not choice.notes:
            yield well("settings", _where_from(options.config, own))
        yield well("model", _model(choice))
    except ConfigError as error:
        yield from_fault("settings", error.fault)
    try:
        notes: list[str] = []
        names = ("token_file", "upstream", "upstream_token_file", "upstream_model")
        flags = {name: getattr(options, name) for name in names}
        known.serve = serve = resolve_serve(flags, options.config, notes=notes)
        yield from (Finding("serve", "warning", note) for note in notes)
        known.address = address_of(options.url, serve.host, serve.port, _token(serve))
    except ConfigError as error:
        yield from_fault("serve", error.fault)


def _where_from(named: Path | None, own: Path | None) -> str:
    """Return where the settings come from."""
    if named or own:
        return f"read from {named or own}" + (" (your own)" if own else "")
    return "defaults, variables and flags"


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


def _models(config: EngineConfig, known: Known) -> Iterator[Finding]:
    found, known.target = models.check_model("target", config.target)
    yield found
    if config.drafter == "none":
        yield well("drafter", "none: drafts only copy from the text")
    else:
        found, known.drafter = models.check_model("drafter", config.drafter)
        yield found
    known.whole = known.target is not None and (known.drafter is not None or config.drafter == "none")
    if known.target is not None and known.drafter is not None:
        yield from models.check_together(known.target, known.drafter)
    if known.target is not None and config.asks_head:
        head = models.check_head(config.head, known.target)
        known.whole = known.whole and head.state != "failed"
        yield head
    if known.target is not None:
        yield check_fill_in(known.target)


def _machine(config: EngineConfig, known: Known) -> Iterator[Finding]:
    yield from machine.check_processor(config)
    if known.packages:
        yield from machine.check_device(config)
        yield from engine.check_kernels(config, known.kernel)
    if known.served:
        yield well("memory", "the daemon has enough")
    elif known.target is not None and known.whole:
        memory = models.check_memory(config, known.target, known.drafter if config.asks_drafter else None)
        known.room = memory.state != "failed"
        yield memory


def _upstream(serve: ServeConfig) -> Iterator[Finding]:
    try:
        yield from find_back_end().check(serve)
    except ConfigError as error:
        yield from_fault("upstream", error.fault)


def _daemon(known: Known) -> Iterator[Finding]:
    yield from machine.check_folders()
    if known.serve is not None:
        yield daemon.check_token(known.serve)
        yield from daemon.check_socket(known.serve)
    if known.address is not None and known.found is not None:
        yield daemon.check_port(known.address, known.found)
        yield from daemon.check_daemon(known.found)
        if known.served and not known.found.daemon.get("upstream"):
            yield engine.check_daemon_arithmetic(known.found.daemon)


def _probe(known: Known) -> Iterator[Finding]:
    if known.served:
        assert known.address is not None
        yield engine.probe_daemon(known.address)
    elif known.packages and known.whole and known.room:
        assert known.config is not None and known.target is not None
        yield from engine.probe_engine(known.config, known.target, known.drafter)
    else:
        yield well("probe", "not tried: fix the failed checks above first")
