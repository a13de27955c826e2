"""The demo takes the tiny pair and the plain environment of the command line's tests."""

from __future__ import annotations

from tests.cli.conftest import models, plain_environment

__all__ = ["models", "plain_environment"]
