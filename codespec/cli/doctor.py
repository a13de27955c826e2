"""`codespec doctor`: check everything that a completion needs, and suggest a fix for each problem."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from codespec.cli.daemon_call import add_address_options
from codespec.cli.options import add_engine_options, add_flag
from codespec.cli.parser import Parser
from codespec.contract.serve_config import ServeConfig


def add_parser(commands: Any) -> None:
    """Add the command and its flags."""
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
    """Print a line for each finding; return 1 if a check failed, else 0."""
    from codespec.cli.checks.examination import examine

    findings = []
    for finding in examine(options):
        findings.append(finding)
        if not options.json:
            print(finding.line, flush=True)
    count = {state: sum(finding.state == state for finding in findings) for state in ("warning", "failed")}
    if options.json:
        print(json.dumps({"ok": not count["failed"], "checks": [asdict(finding) for finding in findings]}))
    else:
        print(f"\n{count['failed']} failed, {count['warning']} warning(s)" if any(count.values()) else "\nall is well")
    return 1 if count["failed"] else 0
