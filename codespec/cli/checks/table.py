"""The table of the checks of `codespec doctor`. A check that fails skips only those that need its result."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple

from codespec.cli.checks import daemon, engine, machine, models
from codespec.cli.checks.seen import Seen
from codespec.errors import CodespecError, Finding, from_fault


class Check(NamedTuple):
    """A check, its name in a finding if it raises a CodespecError, and whether it applies."""

    name: str
    run: Callable[[Seen], Iterator[Finding]]
    applies: Callable[[Seen], object] = lambda seen: True


CHECKS = (
    Check("python", machine.check_python),
    Check("settings", models.check_settings),
    Check("serve", daemon.check_settings),
    Check("daemon", daemon.look, lambda seen: seen.address),
    Check("upstream", daemon.check_upstream, lambda seen: seen.upstream),
    Check("packages", machine.check_packages, lambda seen: not seen.upstream),
    Check("target", models.check_target, lambda seen: seen.engine),
    Check("drafter", models.check_drafter, lambda seen: seen.engine),
    Check("pair", models.check_together, lambda seen: seen.target and seen.drafter),
    Check("fill-in", models.check_filling, lambda seen: seen.target),
    Check("cores", machine.check_cores, lambda seen: seen.engine),
    Check("dtype", machine.check_format, lambda seen: seen.engine),
    Check("device", machine.check_device, lambda seen: seen.engine and seen.packages),
    Check("kernel", machine.check_kernels, lambda seen: seen.engine and seen.packages),
    Check("memory", models.check_memory, lambda seen: seen.target),
    Check("cache", machine.check_folders),
    Check("secret", machine.check_secret),
    Check("token", daemon.check_token, lambda seen: seen.serve),
    Check("port", daemon.check_port, lambda seen: seen.found),
    Check("daemon", daemon.check_daemon, lambda seen: seen.found),
    Check("arithmetic", daemon.check_arithmetic, lambda seen: seen.ready),
    Check("probe", daemon.probe, lambda seen: seen.ready and not seen.options.no_probe),
    Check("probe", engine.probe, lambda seen: not (seen.ready or seen.upstream or seen.options.no_probe)),
)


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    """Yield every finding as soon as it is made."""
    seen = Seen(options)
    for name, run, applies in CHECKS:
        if not applies(seen):
            continue
        try:
            yield from run(seen)
        except CodespecError as error:
            yield from_fault(name, error.fault)
