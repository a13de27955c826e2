"""`--model` and the user's configuration file in every command, and the message if no model is chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from codespec.store import resolve
from codespec.store.catalogue import Entry, find_entry
from codespec.store.choice import DEFAULTS, pull_command, recommend
from codespec.store.pulled import folder_of
from tests.cli.conftest import Command, Models, lines_of
from tests.cli.processes import fork
from tests.server.test_process import daemon

RECOMMENDED = recommend().model
NOTE = f"codespec: the small starter pair answers; {pull_command(RECOMMENDED)} brings a real one\n"
COMMANDS = ("complete {source}:1:1", "serve", "check", "bench policy", "bench decode", "bench serve", "bench typing")


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up without pulled models and without a configuration file."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    """Return the path of the user's configuration file."""
    file = tmp_path / "config" / "codespec" / "config.toml"
    file.parent.mkdir(parents=True)
    return file


@pytest.fixture
def without_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the shipped adapters, which do not fit a small model with a real model's name."""

    def find_bare(name: str) -> Entry | None:
        entry = find_entry(name)
        return entry and replace(entry, adapter="")

    monkeypatch.setattr(resolve, "find_entry", find_bare)


def pull(name: str, model: Path) -> None:
    """Store a model as if it had been pulled."""
    place = folder_of(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir()
    for file in model.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    told = {"name": name, "source": "test", "licence": "", "model": "", "sha256": {}, "bytes": 1, "date": ""}
    (place / "codespec_model.json").write_text(json.dumps(told))


@pytest.mark.parametrize("line", [*COMMANDS, "doctor", "lsp", "bench step", "bench quality"])
def test_every_command_takes_it(line: str, command: Command) -> None:
    assert "--model NAME" in command(*line.split()[: 2 if line.startswith("bench") else 1], "--help").out


@pytest.mark.parametrize("line", [*COMMANDS, "lsp"])
def test_a_name_that_is_unknown(line: str, command: Command, source: Path) -> None:
    done = command(*line.format(source=source).split(), "--model", "smolm")
    done.check_mistake("model = 'smolm' is unknown: choose one of starter, smollm2-135m, ")


@pytest.mark.parametrize("line", COMMANDS)
def test_one_that_is_not_pulled(line: str, command: Command, source: Path) -> None:
    done = command(*line.format(source=source).split(), "--model", "smollm2-135m")
    done.check_mistake("smollm2-135m has not been pulled: run `codespec models pull smollm2-135m` (93 MB).")


def test_from_a_variable_and_from_the_users_file(
    command: Command, source: Path, own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_file.write_text('model = "smollm2-135m"\n')
    command("complete", f"{source}:1:1").check_mistake("smollm2-135m has not been pulled: run ")
    monkeypatch.setenv("CODESPEC_MODEL", "smolm")
    command("complete", f"{source}:1:1").check_mistake("model = 'smolm' is unknown: choose one of starter, ")


def test_a_file_of_the_users_that_is_broken(command: Command, source: Path, own_file: Path, tmp_path: Path) -> None:
    own_file.write_text("model = \n")
    for line in ("complete {source}:1:1", "serve", "check", "stats"):
        command(*line.format(source=source).split()).check_mistake(f"{own_file} is not valid TOML (")
    (tmp_path / "empty.toml").touch()
    assert command("stats", "--config", tmp_path / "empty.toml", "--url", "http://127.0.0.1:1").code == 0


def test_where_nothing_is_chosen_the_starter_pair_answers_and_says_so(command: Command, source: Path) -> None:
    words = ("complete", f"{source}:10:1", "--max-tokens", "4", "--no-learn")
    done = command(*words)
    assert done.code == 0 and done.err.startswith(NOTE)
    assert NOTE not in command(*words, "--model", "starter").err


@pytest.mark.usefixtures("without_adapters")
def test_a_model_that_is_pulled_answers_by_itself(command: Command, models: Models, source: Path) -> None:
    pull(RECOMMENDED, models.target)
    words = ("complete", f"{source}:10:1", "--max-tokens", "4", "--no-learn", "--no-heal", "--shape", "raw", "--json")
    by_default = command(*words, "--dtype", "float32")
    assert by_default.code == 0 and NOTE not in by_default.err
    by_path = command(*words, "--target", models.target)
    assert json.loads(by_default.out)["token_ids"] == json.loads(by_path.out)["token_ids"]
    by_name = command(*words, "--dtype", "float32", "--model", RECOMMENDED, "--drafter", "none")
    assert json.loads(by_name.out)["token_ids"] == json.loads(by_path.out)["token_ids"]


@pytest.mark.usefixtures("without_adapters")
def test_the_doctor_says_which_model_and_why(
    command: Command, own_file: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*words: str) -> dict[str, str]:
        return lines_of(command("doctor", "--no-probe", *words))

    found = look()
    assert found["settings"] == "ok: defaults, variables and flags"
    assert found["model"] == f"ok: starter, since {RECOMMENDED} has not been pulled; " + NOTE[10:].strip()
    assert look("--model", "starter")["model"] == "ok: starter, named by the command line"
    own_file.write_text('model = "starter"\n')
    found = look()
    assert found["settings"] == f"ok: read from {own_file} (your own)"
    assert found["model"] == f"ok: starter, named by {own_file}"
    monkeypatch.setenv("CODESPEC_MODEL", "starter")
    assert look()["model"] == "ok: starter, named by the environment"
    found = look("--target", str(models.target))
    assert found["model"] == "ok: target and drafter are named one by one"
    monkeypatch.delenv("CODESPEC_MODEL")
    own_file.unlink()
    other = next(name for name in DEFAULTS if name != RECOMMENDED)
    pull(other, models.target)
    assert look()["model"] == f"ok: {other}, the default, since {RECOMMENDED} has not been pulled"
    pull(RECOMMENDED, models.target)
    assert look()["model"] == f"ok: {RECOMMENDED}, the default, since it has been pulled"


def test_the_daemon_says_it_in_its_log_and_to_whoever_asks(own_file: Path) -> None:
    own_file.write_text("[serve]\nqueue = 3\n")
    with daemon("--no-learn", "--threads", "1") as served:
        served.until_ready()
        told = json.loads(served.ask("GET", "/health")[1])
        assert NOTE[10:].strip() in told["notes"]
        assert (told["model"], told["offer"]["model"], told["target"]) == ("", RECOMMENDED, "codespec-starter")
        assert told["offer"]["bytes"] > 9e7
        code, _, err = served.end(15)
        assert code == 0 and err.count(NOTE) == 1


def test_a_daemon_with_a_model_that_was_named_offers_none() -> None:
    with daemon("--model", "starter", "--no-learn", "--threads", "1") as served:
        served.until_ready()
        told = json.loads(served.ask("GET", "/health")[1])
        assert (told["model"], told["offer"]) == ("starter", None)
        assert not any("starter pair" in note for note in told["notes"])


def test_a_daemon_whose_model_is_not_pulled_ends_at_once() -> None:
    done = fork("serve", "--port", "0", "--model", "smollm2-135m")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("run `codespec models pull smollm2-135m` (93 MB).\n")


def test_the_engine_in_a_program_follows_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from codespec import ConfigError, Engine

    engine = Engine.load(learn=False, threads=1)
    assert any("starter pair answers" in note for note in engine.notes)
    engine.close()
    with pytest.raises(ConfigError, match="smollm2-135m has not been pulled"):
        Engine.load(model="smollm2-135m")
    monkeypatch.setenv("CODESPEC_MODEL", "starter")
    engine = Engine.load(learn=False, threads=1)
    assert not any("starter pair answers" in note for note in engine.notes)
    engine.close()
