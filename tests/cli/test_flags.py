"""Every setting has a flag, generated from its declaration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from codespec.api.config import EngineConfig, ServeConfig
from codespec.api.settings import declared
from codespec.cli import build_parser

PARSER = build_parser()
SETTINGS = [(schema, name) for schema in (EngineConfig, ServeConfig) for name in declared(schema)]


def other_value(schema: type, name: str) -> tuple[list[str], Any]:
    """Return a flag that changes a setting, and the new value."""
    default, facts, flag = asdict(schema())[name], declared(schema)[name], f"--{name.replace('_', '-')}"
    if isinstance(default, bool):
        return [flag.replace("--", "--no-") if default else flag], not default
    if isinstance(default, dict):
        return [flag, "comment=10,python.docstring=0"], {"comment": 10, "python.docstring": 0}
    if facts.choices:
        return [flag, facts.choices[-1]], facts.choices[-1]
    if isinstance(default, str):
        return [flag, "other"], "other"
    value = type(default)(facts.most if facts.most is not None else 99)
    return [flag, str(value)], value


@pytest.mark.parametrize(("schema", "name"), SETTINGS, ids=lambda value: getattr(value, "__name__", value))
def test_a_flag_sets_it(schema: type, name: str) -> None:
    words, value = other_value(schema, name)
    assert getattr(PARSER.parse_args(["serve", *words]), name) == value
    assert getattr(PARSER.parse_args(["serve"]), name) is None


@pytest.mark.parametrize("name", [name for name, facts in declared(EngineConfig).items() if facts.automatic])
def test_auto_is_zero(name: str) -> None:
    options = PARSER.parse_args(["serve", f"--{name.replace('_', '-')}", "auto"])
    assert getattr(options, name) == 0
