"""The daemon's settings: their sources, rejected values, and their separation from the engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codespec.api.config import EngineConfig, ServeConfig, resolve_serve
from codespec.api.settings import Settings
from codespec.cli import main
from codespec.errors import ConfigError
from codespec.server.engine_thread import public_name
from codespec.store.choice import resolve_engine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "codespec.toml"
    path.write_text('warmup = 7\n[serve]\nport = 1\nqueue = 2\nhost = "::1"\n')
    return path


def test_flags_win_over_variables_over_the_file(file: Path) -> None:
    environment = {"CODESPEC_SERVE_PORT": "4", "CODESPEC_SERVE_QUEUE": "5"}
    config = resolve_serve({"port": 3, "host": None}, Settings(file, environment))
    assert (config.port, config.queue, config.host, config.drain_seconds) == (3, 5, "::1", 30)


def test_one_file_and_one_environment_serve_both(file: Path) -> None:
    environment = {"CODESPEC_SERVE_PORT": "4", "CODESPEC_SERVE_TOKEN": "x" * 20, "CODESPEC_CONTEXT": "128"}
    assert resolve_engine({}, file, environment) == EngineConfig(
        warmup=7, context=128, dtype="native", drafter_dtype="native"
    )
    assert resolve_serve({}, Settings(file, environment)) == ServeConfig(port=4, queue=2, host="::1")


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"port": 65536}, {}, "port = 65536 is too large: it must be at most 65535"),
        ({"port": -1}, {}, "port = -1 is too small: it must be at least 0"),
        ({"queue": -1}, {}, "queue"),
        ({}, {"CODESPEC_SERVE_QUEUE": "1000001"}, "queue = 1000001 is too large"),
        ({"host": ""}, {}, "host '' is invalid"),
        ({}, {"CODESPEC_SERVE_PORT": "many"}, "CODESPEC_SERVE_PORT = 'many' is invalid: it must be a whole number"),
        ({}, {"CODESPEC_SERVE_PROT": "1"}, "Unknown setting CODESPEC_SERVE_PROT"),
    ],
)
def test_what_is_refused(flags: dict[str, Any], environment: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_serve(flags, Settings(environment=environment))


@pytest.mark.parametrize(
    ("text", "words"), [("[serve]\nprot = 1\n", "prot in .*: the closest is port"), ("serve = 1\n", "must be a table")]
)
def test_what_is_refused_in_a_file(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        resolve_serve({}, Settings(tmp_path / "c.toml", {}))


def test_a_models_public_name_is_no_path(tmp_path: Path) -> None:
    assert public_name(EngineConfig().target) == "codespec-starter"
    assert public_name(EngineConfig().drafter) == "codespec-starter-drafter"
    assert public_name(str(tmp_path / "models" / "mine")) == "mine"
    assert public_name("owner/model-1b") == "owner/model-1b"


COMMANDS = (
    ["serve"],
    ["complete", "FILE:1:1"],
    ["complete", "FILE:1:1", "--local"],
    ["check"],
    ["doctor", "--no-probe"],
    ["stats"],
    ["keys", "list", "--keys", "FILE"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_reads_the_file_once(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all settings come from the same state of the file."""
    reads: list[Path] = []

    def read(file: Path) -> str:
        reads.append(file)
        return file.read_text()

    served: list[ServeConfig] = []
    monkeypatch.setattr("codespec.api.settings.read_text", read)
    monkeypatch.setattr("codespec.cli.serve.default_depends_on_speed", lambda: True)
    monkeypatch.setattr("codespec.cli.serve.measure_step", lambda say: 0.0)
    monkeypatch.setattr("codespec.server.app.serve", lambda source, settings, *_: served.append(settings) or 0)  # type: ignore[func-returns-value]
    monkeypatch.setattr("codespec.cli.complete.load_and_complete", lambda config, request: iter(()))
    file, source = tmp_path / "config.toml", tmp_path / "source.py"
    file.write_text('model = "starter"\n[serve]\nqueue = 7\nport = 1\n')
    source.write_text("")
    main([*(word.replace("FILE", str(source)) for word in words), "--config", str(file)])
    assert reads == [file] and all(settings.queue == 7 for settings in served)
