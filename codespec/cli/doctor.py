"""`codespec doctor`: check everything that a completion needs, and suggest a fix for each problem."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from codespec.api.config import ServeConfig
from codespec.cli.options import Parser, add_address_options, add_engine_options, add_flag
from codespec.errors import CodespecError, Finding, as_json, from_fault


def add_parser(commands: Any) -> None:
    parser: Parser = commands.add_parser(
        "doctor",
        help="check everything that a completion needs and suggest fixes",
        usage="%(prog)s [options]",
        description="Checks packages, settings, models, memory, port, folders and the daemon, and completes a short "
        "text with and without speculation. Exits with 1 if something must be fixed.",
    )
    add_address_options(parser, config=False)
    for name in ("upstream", "upstream_token_file", "upstream_model"):
        add_flag(parser, parser, ServeConfig, name)
    parser.add_argument("--no-probe", action="store_true", help="do not complete a text")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if a check failed, else 0."""
    findings = []
    for finding in examine(options):
        findings.append(finding)
        if not options.json:
            print(finding.line, flush=True)
    report, states = as_json(findings), [finding.state for finding in findings]
    if options.json:
        print(json.dumps(report))
    elif states.count("ok") == len(states):
        print("\nall is well")
    else:
        print(f"\n{states.count('failed')} failed, {states.count('warning')} warning(s)")
    return 0 if report["ok"] else 1


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    """Run the checks, yielding each finding immediately. A check that needs the result of a failed check is skipped."""
    from codespec.cli import daemon_checks, machine_checks

    seen = machine_checks.Seen(options)
    for subject, check in {
        "settings": machine_checks.check_settings,
        "serve": daemon_checks.check_serve,
        "token": daemon_checks.check_token,
        "port": daemon_checks.check_port,
        "upstream": daemon_checks.check_upstream,
        "packages": machine_checks.check_packages,
        "target": machine_checks.check_target,
        "drafter": machine_checks.check_drafter,
        "cores": machine_checks.check_cores,
        "device": machine_checks.check_device,
        "memory": machine_checks.check_memory,
        "folders": machine_checks.check_folders,
        "daemon": daemon_checks.check_daemon,
        "probe": daemon_checks.check_probe,
    }.items():
        try:
            yield from check(seen)
        except CodespecError as error:
            yield from_fault(subject, error.fault)
