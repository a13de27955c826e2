"""Settings: their sources and precedence, their types, and rejected values.

tests/store/test_choice.py covers the precedence between `model`, `target` and `drafter`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import codespec_weights
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codespec.api.config import POLICIES, SHIPPED, EngineConfig, ServeConfig, resolve_serve
from codespec.api.settings import Settings, declared, user_file
from codespec.errors import ConfigError
from codespec.store.choice import resolve_engine

DEFAULTS = asdict(EngineConfig())
NAMES = list(DEFAULTS)
FACTS = declared(EngineConfig)
MIN = {name: facts.least for name, facts in FACTS.items() if isinstance(facts.least, int)}
MAX = {name: facts.most for name, facts in FACTS.items() if isinstance(facts.most, int)}
WORD = st.text("abcxyz019-_./", min_size=1).filter(lambda name: not name.startswith("~"))


def good_value(name: str) -> st.SearchStrategy[Any]:
    """Return a valid value of a setting."""
    if FACTS[name].choices:
        return st.sampled_from(FACTS[name].choices)
    if name == "policy":
        return st.sampled_from([*POLICIES, "fixed:3"])
    if name == "caps":
        return st.dictionaries(st.sampled_from(["comment", "go.string", "python.comment"]), st.integers(0, 20))
    if name == "device":
        return st.sampled_from(["auto", "cpu", "cuda", "cuda:1"])
    if name == "drafter_device":
        return st.sampled_from(["same", "auto", "cpu", "cuda:1"])
    kind = type(DEFAULTS[name])
    if kind is int:
        return st.integers(MIN[name], MAX.get(name, 10**6))
    return {bool: st.booleans(), float: st.floats(0, 1), str: WORD}[kind]


SOME = st.fixed_dictionaries({}, optional={name: good_value(name) for name in NAMES if name != "model"})


def as_toml(values: dict[str, Any]) -> str:
    """Return the settings as TOML."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in values.items())


def toml_value(value: Any) -> str:
    """Return one value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_value(part)}" for name, part in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def as_variables(values: dict[str, Any]) -> dict[str, str]:
    """Return the settings as environment variables."""
    return {f"CODESPEC_{name.upper()}": variable(value) for name, value in values.items()}


def variable(value: Any) -> str:
    """Return one value as an environment variable spells it."""
    return ",".join(f"{name}={part}" for name, part in value.items()) if isinstance(value, dict) else str(value)


def with_followed_dtype(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with default dtypes filled in.

    A named drafter takes the target's dtype unless its own is set, and any drafter on a processor takes native; a named
    target uses bfloat16 on a GPU.
    """
    if "target" in values and str(values.get("device")).startswith("cuda") and "dtype" not in values:
        beside = {"drafter_dtype": "float32"} if values.get("drafter_device") == "cpu" else {}
        values = {"dtype": "bfloat16", **beside, **values}
    if "target" not in values and "dtype" not in values and not str(values.get("device")).startswith("cuda"):
        values = {"dtype": "native", **values}
    if "dtype" not in values:
        return values
    if values["dtype"] == "native":
        follows = not str(values.get("drafter_device")).startswith("cuda")
    else:
        follows = "drafter" in values
    return {"drafter_dtype": values["dtype"], **values} if follows else values


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a path for a configuration file."""
    return tmp_path_factory.mktemp("config") / "codespec.toml"


@given(SOME, SOME, SOME)
def test_file_then_environment_then_flags(
    file: Path, in_file: dict[str, Any], variables: dict[str, Any], flags: dict[str, Any]
) -> None:
    file.write_text(as_toml(in_file))
    expected = {**DEFAULTS, **with_followed_dtype({**in_file, **variables, **flags})}
    assert asdict(resolve_engine(flags, file, as_variables(variables))) == expected


@given(SOME)
def test_each_source_gives_the_same_object(file: Path, values: dict[str, Any]) -> None:
    file.write_text(as_toml(values))
    assert (
        resolve_engine(values, environment={})
        == resolve_engine({}, file, {})
        == resolve_engine({}, environment=as_variables(values))
    )


@given(SOME, st.sets(st.sampled_from(NAMES)))
def test_a_flag_that_is_none_says_nothing(values: dict[str, Any], unsaid: set[str]) -> None:
    message = {name: value for name, value in values.items() if name not in unsaid}
    flags = {**dict.fromkeys(unsaid), **message}
    assert resolve_engine(flags, environment={}) == resolve_engine(message, environment={})


def test_without_an_environment_given_it_is_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODESPEC_THREADS", "3")
    assert resolve_engine({}).threads == 3
    assert resolve_engine({}, environment={}).threads == 0


@given(
    st.sampled_from(NAMES),
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.binary()),
)
def test_a_value_is_kept_as_it_is_or_refused_by_name(name: str, value: Any) -> None:
    """Nothing is rounded, cut or reinterpreted; only an integer may stand for a float."""
    try:
        got = getattr(resolve_engine({name: value}, environment={}), name)
    except ConfigError as error:
        assert name in str(error) or str(value) in str(error)
        return
    kind = type(DEFAULTS[name])
    assert type(got) is kind and got == value
    assert type(value) is kind or (kind is float and type(value) is int)


@given(st.sampled_from(NAMES), st.one_of(st.text(), st.integers().map(str), st.floats().map(str), WORD))
def test_any_text_in_a_variable_is_read_or_refused(name: str, text: str) -> None:
    variable = f"CODESPEC_{name.upper()}"
    try:
        got = getattr(resolve_engine({}, environment={variable: text}), name)
    except ConfigError as error:
        assert any(word in str(error) for word in (variable, f"{name} = ", "home folder"))
        return
    assert type(got) is type(DEFAULTS[name])


@pytest.mark.parametrize("name", [name for name, value in DEFAULTS.items() if isinstance(value, bool)])
@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("Yes", True), ("0", False), ("FALSE", False), ("no", False)],
)
def test_spellings_of_true_and_false(name: str, text: str, value: bool) -> None:
    assert getattr(resolve_engine({}, environment={f"CODESPEC_{name.upper()}": text}), name) is value


@pytest.mark.parametrize("text", ["", "2", "on", "truee", " true"])
def test_no_spellings_of_true_and_false(text: str) -> None:
    with pytest.raises(ConfigError, match=r"CODESPEC_SPECULATE = .* is invalid: it must be true or false"):
        resolve_engine({}, environment={"CODESPEC_SPECULATE": text})


@pytest.mark.parametrize("name", MIN)
def test_least(name: str) -> None:
    assert getattr(resolve_engine({name: MIN[name]}, environment={}), name) == MIN[name]
    below = -1 if name == "context" else MIN[name] - 1
    with pytest.raises(ConfigError, match=f"{name} = {below} is too small: it must be at least {MIN[name]}"):
        resolve_engine({name: below}, environment={})


def test_context_0_means_the_models_own() -> None:
    assert resolve_engine({"context": 0}, environment={}).context == 0
    with pytest.raises(ConfigError, match="context = 63 is too small"):
        resolve_engine({"context": 63}, environment={})


@pytest.mark.parametrize("name", MAX)
def test_most(name: str) -> None:
    assert getattr(resolve_engine({name: MAX[name]}, environment={}), name) == MAX[name]
    with pytest.raises(ConfigError, match=f"{name} = {MAX[name] + 1} is too large: it must be at most {MAX[name]}"):
        resolve_engine({name: MAX[name] + 1}, environment={})


@pytest.mark.parametrize("device", ["", "gpu", "meta", "mps", "CPU", "cuda:", "cuda:x", "cuda:1000", "cpu\n"])
def test_devices_that_are_none(device: str) -> None:
    with pytest.raises(ConfigError, match="is unknown: choose one of auto, cpu, cuda"):
        resolve_engine({"device": device}, environment={})


@pytest.mark.parametrize(
    ("settings", "drafters"),
    [
        ({"dtype": "bfloat16", "drafter": "own"}, "bfloat16"),
        ({"dtype": "bfloat16", "drafter": f"{SHIPPED}-models/own"}, "bfloat16"),  # next to ours, not inside it
        ({"dtype": "bfloat16"}, "float32"),  # the starter drafter is so small that float32 is fastest
        ({"drafter_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "bfloat16", "drafter_dtype": "float32"}, "float32"),
    ],
)
def test_the_drafters_dtype_follows_unless_it_is_named(settings: dict[str, str], drafters: str) -> None:
    assert resolve_engine(settings, environment={}).drafter_dtype == drafters
    assert resolve_engine({}, environment=as_variables(settings)).drafter_dtype == drafters


def test_a_named_drafter_dtype_is_not_overruled_from_another_source() -> None:
    got = resolve_engine({"dtype": "bfloat16"}, environment={"CODESPEC_DRAFTER_DTYPE": "float32"})
    assert (got.dtype, got.drafter_dtype) == ("bfloat16", "float32")


def test_home_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    got = resolve_engine({"target": "~/models/t", "drafter": "a~b"}, environment={})
    assert (got.target, got.drafter) == (str(tmp_path / "models/t"), "a~b")
    with pytest.raises(ConfigError, match="~nobody-here/t begins with an unknown home folder: give the absolute"):
        resolve_engine({"target": "~nobody-here/t"}, environment={})


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("thread", "the closest is threads"),
        ("Threads", "the closest is threads"),
        ("", f"choose one of {', '.join(NAMES)}"),
        ("x.y", f"choose one of {', '.join(NAMES)}"),
    ],
)
def test_unknown_keys(key: str, fix: str, file: Path) -> None:
    file.write_text(f'"{key}" = 1\n')
    calls: dict[str, Callable[[], EngineConfig]] = {
        f"{key} in {file}": lambda: resolve_engine({}, file, {}),
        key: lambda: resolve_engine({key: 1}, environment={}),
    }
    for label, call in calls.items():
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == f"Unknown setting {label}: {fix}."


def test_unknown_variables_of_ours_are_errors_too() -> None:
    """A misspelt variable would otherwise be ignored silently."""
    with pytest.raises(ConfigError, match="Unknown setting CODESPEC_THREDS: the closest is threads"):
        resolve_engine({}, environment={"CODESPEC_THREDS": "2"})
    assert (
        resolve_engine({}, environment={"CODESPEC_PROMPTS": "a.jsonl", "PATH": "x", "codespec_threads": "2"}).threads
        == 0
    )


@pytest.mark.parametrize("data", [b"threads =", b"threads = 1\nthreads = 2", b"{"])
def test_broken_files(data: bytes, file: Path) -> None:
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=re.escape(f"{file} is not valid TOML (")):
        resolve_engine({}, file, {})


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't be read .No such file or directory.: check its path"):
        resolve_engine({}, tmp_path / "none.toml", {})


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the user's configuration file, in an existing folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / "codespec" / "config.toml"
    file.parent.mkdir(parents=True)
    return file


def test_the_users_own_file_is_read_where_none_is_named(own_file: Path, file: Path) -> None:
    assert user_file() is None and resolve_engine({}, environment={}).warmup == DEFAULTS["warmup"]
    own_file.write_text("warmup = 7\ncontext = 128\n[serve]\nport = 4321\n")
    assert user_file() == own_file
    got = resolve_engine({"context": 256}, environment={})
    assert (got.warmup, got.context) == (7, 256)
    assert resolve_serve({}, Settings(environment={})).port == 4321
    file.write_text("threads = 2\n")
    named = resolve_engine({}, file, {})
    assert (named.threads, named.warmup) == (2, DEFAULTS["warmup"]), "a file that is named replaces it"
    assert resolve_serve({}, Settings(file, {})).port == ServeConfig().port


def test_an_own_file_that_can_not_be_read_is_told(own_file: Path) -> None:
    own_file.write_text("warmup = [")
    with pytest.raises(ConfigError, match=re.escape(f"{own_file} is not valid TOML (")):
        resolve_engine({}, environment={})
    own_file.unlink()
    own_file.symlink_to("nowhere.toml")
    with pytest.raises(ConfigError, match=re.escape(f"{own_file} can't be read (No such file or directory)")):
        resolve_engine({}, environment={})
    own_file.unlink()
    own_file.mkdir()
    with pytest.raises(ConfigError, match=re.escape(f"{own_file} can't be read (Is a directory)")):
        resolve_serve({}, Settings(environment={}))


def test_a_file_where_the_folder_should_be_is_no_own_file(own_file: Path) -> None:
    own_file.parent.rmdir()
    own_file.parent.touch()
    assert user_file() is None


def test_every_setting_says_what_it_is_and_its_default_is_allowed() -> None:
    for schema in (EngineConfig, ServeConfig):
        assert [item.name for item in fields(schema)] == list(declared(schema))
        for name, facts in declared(schema).items():
            assert facts.help, name
            assert not facts.choices or getattr(schema(), name) in facts.choices


def test_the_object_is_frozen() -> None:
    settings = EngineConfig()
    with pytest.raises(AttributeError):
        settings.threads = 2  # type: ignore[misc]
    assert all(item.kw_only for item in fields(EngineConfig))


def test_the_starter_pair_is_the_default() -> None:
    assert EngineConfig().target == str(Path(codespec_weights.__file__).parent / "target")
    assert EngineConfig().drafter == str(Path(codespec_weights.__file__).parent / "drafter")
