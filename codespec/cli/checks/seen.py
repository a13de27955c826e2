"""What the checks of `codespec doctor` have found so far. Each check reads what earlier ones left here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from codespec.api.engine_config import EngineConfig
from codespec.api.serve_config import ServeConfig
from codespec.cli.daemon_call import Address
from codespec.client.daemon_client import Found
from codespec.pair.facts import ModelFacts


@dataclass(slots=True)
class Seen:
    """Settings, models and the daemon; None for what could not be read.

    found     the program at the daemon's address
    packages  whether the packages that the configured models need can be imported
    fits      whether the models are complete and fit into memory
    """

    options: argparse.Namespace
    config: EngineConfig | None = None
    serve: ServeConfig | None = None
    address: Address | None = None
    found: Found | None = None
    target: ModelFacts | None = None
    drafter: ModelFacts | None = None
    packages: bool = False
    fits: bool = False

    @property
    def daemon(self) -> Mapping[str, Any] | None:
        """The report of the user's own daemon, if it answers."""
        return self.found.daemon if self.found is not None and self.found.who == "daemon" else None

    @property
    def ready(self) -> bool:
        """Whether a daemon completes, perhaps after it has loaded its models again."""
        return self.daemon is not None and self.daemon["state"] in ("ready", "idle")

    @property
    def engine(self) -> EngineConfig | None:
        """The settings of an engine that this machine has to run, if they are valid."""
        return None if self.upstream else self.config

    @property
    def upstream(self) -> bool:
        """Whether another server writes the text."""
        return self.serve is not None and bool(self.serve.upstream)
