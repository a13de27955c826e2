"""The demo's tests use the tiny pair and the plain environment of the command-line tests."""

from __future__ import annotations

from tests.cli.conftest import models, plain_environment

__all__ = ["models", "plain_environment"]
