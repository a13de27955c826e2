"""Flags become a benchmark's settings; without flags, it has its defaults."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from codespec_lab.bench.settings import BENCHES, DecodeBench, ServeBench

from codespec.cli import build_parser
from codespec.cli.options import engine_config

REQUIRED = {"divergence": ["--dtype", "float32"]}
PREPARED = {"config", "command", "candidate", "shape", "file"}  # set by `prepared`, or required


@pytest.mark.parametrize("name", BENCHES)
def test_without_flags_settings_are_the_defaults(name: str) -> None:
    kind, options = BENCHES[name], build_parser().parse_args(["bench", name, *REQUIRED.get(name, [])])
    bench = kind.of(engine_config(options), vars(options))
    usual = kind(bench.config, **({"candidate": "float32"} if name == "divergence" else {}))
    for one in fields(kind):
        if one.name not in PREPARED:
            given, default = getattr(bench, one.name), getattr(usual, one.name)
            assert given == default or list(given) == list(default) == [], one.name
    assert bench.file is None


def test_flags_and_fields_may_have_two_names() -> None:
    words = ["bench", "serve", "--max-tokens", "7", "--json", "a.json", "--prompts", "b"]
    options = build_parser().parse_args(words)
    bench = ServeBench.of(engine_config(options), vars(options))
    assert bench == ServeBench(bench.config, tokens=7, file=Path("a.json"), prompts=Path("b"))


def test_lists_are_parsed() -> None:
    options = build_parser().parse_args(["bench", "decode", "--sampling", "greedy", "--concurrency", "4,1,4"])
    bench = DecodeBench.of(engine_config(options), vars(options))
    assert isinstance(bench, DecodeBench) and bench == replace(bench, samplings=("greedy",), concurrency=(1, 4))
