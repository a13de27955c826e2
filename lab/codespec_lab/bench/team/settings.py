"""The settings of `codespec bench team`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.errors import ConfigError
from codespec_lab.bench.flags import Bench, flag, number, path, switch


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamBench(Bench):
    """`developers` type for `seconds` at the daemon at `url`, or one of its own. With `find`, fewer do until the
    waiting time at the 95th percentile is within the limit.
    """

    module = "team.scenario"
    about = "a team of typists at one address: waiting times, right characters in time, and how many developers fit"
    note = (
        "--url may name a daemon, `codespec scale up`, or a daemon with --upstream; its token comes from "
        "CODESPEC_SERVE_TOKEN."
    )
    draws = False
    daemon = True

    url: str = flag("", "what answers (default: a daemon of its own)", metavar="URL")
    developers: int = number(50, "typists (50)")
    seconds: int = number(60, "for which they type (60)")
    find: bool = switch("find how many fit: halve the gap until it is closed, at most seven runs more")
    queue: int = number(64, "requests that may wait in a daemon of its own (64)")
    held_out: Path | None = path("held-out projects (default: the work folder's)")
    prompts: Path | None = path("prompts instead, whose last lines are typed")

    def prepared(self, given: Mapping[str, Any]) -> Bench:
        """Refuse two sources of sites."""
        if given["prompts"] is not None and given["held_out"] is not None:
            raise ConfigError("--prompts and --held-out are two sources of places: give one of them.")
        return self
