"""The choice of target and drafter: from a model's name, from each one's setting, or from what is on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codespec.api.config import SHIPPED, EngineConfig
from codespec.api.settings import Settings
from codespec.errors import ConfigError
from codespec.store import choice
from codespec.store.catalogue import read_catalogue
from codespec.store.choice import (
    choose,
    default_depends_on_speed,
    named_model,
    offer,
    offer_note,
    resolve_engine,
)
from codespec.store.machine import write_step
from codespec.store.pulled import folder_of
from codespec.store.resolve import resolve

OWN = EngineConfig()
TARGET, DRAFTER = OWN.target, OWN.drafter
QWEN_DRAFTER = str(SHIPPED / "qwen-drafter")
REFERENCE, LARGE, SMALL = "smollm2-135m", "qwen2.5-coder-7b", "qwen2.5-coder-0.5b"
BETTER, BEST = "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-1.5b-instruct"
Pull = Callable[..., None]


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pull:
    """Make models look pulled, in the test's own data folder."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def pull(*names: str) -> None:
        for name in names:
            folder = folder_of(name)
            folder.mkdir(parents=True)
            told = {"name": name, "source": "test", "licence": "", "model": "", "sha256": {}, "bytes": 1, "date": ""}
            (folder / "codespec_model.json").write_text(json.dumps(told))

    return pull


@pytest.fixture(autouse=True)
def with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "computes_bfloat16", lambda: True)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with memory for every default model and without a speed measurement."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(choice, "machine_memory", lambda: 16_000_000_000)


def names(config: EngineConfig) -> tuple[str, str]:
    return config.target, config.drafter


def levels(tmp_path: Path, file: dict[str, str], environment: dict[str, str], flags: dict[str, str]) -> EngineConfig:
    path = tmp_path / "levels.toml"
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in file.items()))
    return resolve_engine(flags, path, {f"CODESPEC_{name.upper()}": value for name, value in environment.items()})


# Settings in the file, the environment and the flags, and the resulting target and drafter. BETTER is pulled; its
# drafter is QWEN_DRAFTER.
MODEL, T, D = {"model": LARGE}, {"target": "t"}, {"drafter": "d"}


@pytest.mark.parametrize(
    ("file", "environment", "flags", "expected"),
    [
        # nothing, or one part
        ({}, {}, {}, (BETTER, QWEN_DRAFTER)),
        (D, {}, {}, (BETTER, "d")),
        (T, {}, {}, ("t", DRAFTER)),
        (T, {}, D, ("t", "d")),
        # the model alone, from each source
        (MODEL, {}, {}, (LARGE, SMALL)),
        ({}, MODEL, {}, (LARGE, SMALL)),
        ({}, {}, MODEL, (LARGE, SMALL)),
        # a model from a higher source replaces both parts of the lower ones
        (T | D, {}, MODEL, (LARGE, SMALL)),
        (T, D, MODEL, (LARGE, SMALL)),
        (T | D, MODEL, {}, (LARGE, SMALL)),
        ({}, T, MODEL, (LARGE, SMALL)),
        # a target from a higher source replaces the model; the drafter is the default
        (MODEL, {}, T, ("t", DRAFTER)),
        (MODEL, T, {}, ("t", DRAFTER)),
        (MODEL, {}, T | D, ("t", "d")),
        (MODEL | D, {}, T, ("t", "d")),
        ({}, MODEL | D, T, ("t", "d")),
        # a drafter from the same or a higher source replaces only the model's drafter
        (MODEL, {}, D, (LARGE, "d")),
        (MODEL | D, {}, {}, (LARGE, "d")),
        ({}, {}, MODEL | D, (LARGE, "d")),
        (MODEL, D, {}, (LARGE, "d")),
        # in one source: the named target with the model's drafter
        (MODEL | T, {}, {}, ("t", SMALL)),
        ({}, {}, MODEL | T, ("t", SMALL)),
        ({}, {}, MODEL | T | D, ("t", "d")),
        # each source in turn
        (MODEL, T, MODEL, (LARGE, SMALL)),
        (T, MODEL, T, ("t", DRAFTER)),
        (MODEL, {}, {"model": "starter"}, (TARGET, DRAFTER)),
        (T, {}, {"model": ""}, (BETTER, QWEN_DRAFTER)),
    ],
    ids=str,
)
def test_who_overrules_whom(
    file: dict[str, str],
    environment: dict[str, str],
    flags: dict[str, str],
    expected: tuple[str, str],
    tmp_path: Path,
    pull: Pull,
) -> None:
    pull(BETTER, LARGE, SMALL)
    assert names(levels(tmp_path, file, environment, flags)) == expected


@pytest.mark.parametrize(
    ("here", "step", "default"),
    [
        ((), None, "starter"),
        ((REFERENCE,), None, "starter"),
        ((BETTER,), None, BETTER),
        ((BEST,), None, BEST),
        ((BETTER, BEST), None, BETTER),
        ((BETTER, BEST), 40.0, BEST),
        ((BETTER, BEST), 50.0, BETTER),
        ((BETTER,), 40.0, BETTER),
        ((LARGE, SMALL), 40.0, "starter"),
        (("sweep-next-edit-0.5b", "sweep-next-edit-1.5b", "zeta"), 40.0, "starter"),
    ],
    ids=str,
)
def test_the_default(here: tuple[str, ...], step: float | None, default: str, pull: Pull) -> None:
    pull(*here)
    if step is not None:
        write_step(step)
    assert (choose({}, Settings(environment={})).config.model or "starter") == default


def test_why_it_is_the_default(pull: Pull) -> None:
    before = choose({}, Settings(environment={}))
    assert names(before.config) == (TARGET, DRAFTER) and before.config.model == ""
    assert before.why == f"{BETTER} has not been pulled"
    pull(BEST)
    other = choose({}, Settings(environment={}))
    assert other.config.model == BEST and other.why == f"the default, since {BETTER} has not been pulled"
    pull(BETTER)
    after = choose({}, Settings(environment={}))
    assert names(after.config) == (BETTER, QWEN_DRAFTER) and after.config.model == BETTER
    assert after.why == "the default, since it has been pulled"


def test_when_the_speed_chooses(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(BETTER)
    assert not default_depends_on_speed()
    pull(BEST)
    assert default_depends_on_speed()
    monkeypatch.setattr(choice, "machine_memory", lambda: 2_000_000_000)
    assert not default_depends_on_speed()


def test_the_model_that_is_named() -> None:
    assert named_model({"model": None}, Settings(environment={})) == ""
    assert named_model({"model": None}, Settings(environment={"CODESPEC_MODEL": REFERENCE})) == REFERENCE
    assert named_model({"model": BEST}, Settings(environment={"CODESPEC_TARGET": "t"})) == BEST
    assert named_model({"target": "t"}, Settings(environment={"CODESPEC_MODEL": REFERENCE})) == "t"


@pytest.mark.parametrize(
    ("flags", "environment", "why"),
    [
        ({"model": "starter"}, {}, "named by the command line"),
        ({}, {"CODESPEC_MODEL": "starter"}, "named by the environment"),
        ({"target": "t"}, {}, "target and drafter are named one by one"),
        ({"target": "t"}, {"CODESPEC_MODEL": "starter"}, "target and drafter are named one by one"),
    ],
)
def test_the_reason(flags: dict[str, Any], environment: dict[str, str], why: str) -> None:
    assert choose(flags, Settings(environment=environment)).why == why


def test_the_reason_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "codespec.toml"
    file.write_text('model = "starter"\n')
    assert choose({}, Settings(file, {})).why == f"named by {file}"


def test_a_hub_id_means_the_same_model(pull: Pull) -> None:
    pull(SMALL)
    got = resolve_engine({"model": "Qwen/Qwen2.5-Coder-0.5B"}, environment={})
    assert (got.model, got.target, got.drafter) == (SMALL, SMALL, QWEN_DRAFTER)


def test_a_model_that_was_pulled_from_elsewhere_gets_a_drafter_that_fits_any(pull: Pull) -> None:
    pull("my-own")
    got = resolve_engine({"model": "my-own"}, environment={})
    assert (got.model, *names(got)) == ("my-own", "my-own", DRAFTER)


@pytest.mark.parametrize(
    ("settings", "dtypes"),
    [
        ({}, ("native", "native")),
        ({"model": REFERENCE}, ("bfloat16", "float32")),  # the shipped drafter is fastest in float32
        ({"model": BETTER}, ("native", "native")),
        ({"model": BETTER, "dtype": "bfloat16"}, ("bfloat16", "float32")),
        ({"model": LARGE}, ("bfloat16", "bfloat16")),
        ({"model": LARGE, "dtype": "float16"}, ("float16", "float16")),
        ({"model": LARGE, "drafter_dtype": "native"}, ("bfloat16", "native")),
        ({"model": LARGE, "target": "t"}, ("float32", "float32")),  # recommended only for the model's own target
        ({"model": "starter"}, ("native", "native")),
        ({"drafter": "a/folder"}, ("native", "native")),
        ({"drafter": "a/folder", "drafter_device": "cuda"}, ("native", "float32")),
    ],
    ids=str,
)
def test_the_recommended_number_format(settings: dict[str, str], dtypes: tuple[str, str], pull: Pull) -> None:
    pull(LARGE, SMALL)
    if settings.get("model") in (REFERENCE, BETTER):
        pull(settings["model"])
    got = resolve_engine(settings, environment={})
    assert (got.dtype, got.drafter_dtype) == dtypes


def test_the_format_that_a_pull_converts_to(pull: Pull) -> None:
    pull("mine", BETTER, REFERENCE)
    assert [resolve(name).dtype for name in (BETTER, REFERENCE, "mine")] == ["native", "bfloat16", "float32"]


def test_a_number_format_that_the_processor_lacks_is_not_recommended(
    pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(REFERENCE)
    monkeypatch.setattr(choice, "computes_bfloat16", lambda: False)
    assert resolve_engine({"model": REFERENCE}, environment={}).dtype == "float32"
    assert (
        resolve_engine({"model": REFERENCE, "device": "auto"}, environment={}).dtype == "float32"
    )  # it may turn out to be the CPU
    for device in ("cuda", "cuda:1"):
        assert resolve_engine({"model": REFERENCE, "device": device}, environment={}).dtype == "bfloat16"
    assert resolve_engine({"model": REFERENCE, "dtype": "bfloat16"}, environment={}).dtype == "bfloat16"


def test_bfloat16_where_the_native_kernels_are_not_built_or_on_a_gpu(
    pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(BETTER)
    monkeypatch.setattr(choice, "has_gpu", lambda: False)
    monkeypatch.setattr(choice, "has_native", lambda: False)

    def dtype(**flags: str) -> str:
        return resolve_engine({"model": BETTER, **flags}, environment={}).dtype

    monkeypatch.setattr(choice, "computes_bfloat16", lambda: True)
    assert dtype() == dtype(device="auto") == dtype(device="cuda") == "bfloat16"
    monkeypatch.setattr(choice, "computes_bfloat16", lambda: False)
    assert dtype() == "float32" and dtype(device="cuda") == "bfloat16"
    monkeypatch.setattr(choice, "has_native", lambda: True)
    assert dtype() == "native" and dtype(device="cuda") == "bfloat16"
    monkeypatch.setattr(choice, "has_gpu", lambda: True)
    monkeypatch.setattr(choice, "computes_bfloat16", lambda: True)
    assert dtype() == "native" and dtype(device="auto") == "bfloat16"


def test_a_name_that_is_unknown(pull: Pull) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_engine({"model": "smolm"}, environment={})
    assert str(caught.value) == f"model = 'smolm' is unknown: choose one of starter, {', '.join(read_catalogue())}."


@pytest.mark.parametrize("name", ["../x", "/", "a/../b", "~/m", "\0", "starter/target", ".", "x" * 300])
def test_names_that_are_paths_are_unknown(name: str, pull: Pull) -> None:
    with pytest.raises(ConfigError, match="is unknown: choose one of starter, smollm2-135m"):
        resolve_engine({"model": name}, environment={})


def test_a_model_or_its_drafter_that_is_not_pulled(pull: Pull) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_engine({"model": REFERENCE}, environment={})
    assert str(caught.value) == "smollm2-135m has not been pulled: run `codespec models pull smollm2-135m` (93 MB)."
    with pytest.raises(ConfigError, match=r"7b has not been pulled: run `codespec models pull .*` \(15 GB\)\."):
        resolve_engine({"model": LARGE}, environment={})
    pull(LARGE)
    with pytest.raises(ConfigError, match=r"qwen2.5-coder-0.5b has not been pulled: run .* \(988 MB\)\."):
        resolve_engine({"model": LARGE}, environment={})
    assert names(resolve_engine({"model": LARGE, "drafter": "none"}, environment={})) == (LARGE, "none")


def test_what_is_offered_and_when(pull: Pull) -> None:
    alone = resolve_engine({}, environment={})
    offered = offer(alone)
    assert offered is not None and offered.name == BETTER
    assert offer_note(alone) == (
        f"the small starter pair answers; `codespec models pull {BETTER}` (491 MB) brings a real one"
    )
    write_step(30.0)
    assert offer_note(alone) == (
        f"the small starter pair answers; `codespec models pull {BEST}` (1.1 GB) brings a real one"
    )
    for chosen in ({"model": "starter"}, {"target": "t"}):
        assert (
            offer(resolve_engine(chosen, environment={})) is None
            and offer_note(resolve_engine(chosen, environment={})) == ""
        )
    pull(BEST)
    assert offer(resolve_engine({}, environment={})) is None


def test_a_target_of_ones_own_is_bfloat16_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def dtypes(**flags: str) -> tuple[str, str]:
        config = resolve_engine({"target": "./mine", **flags}, environment={})
        return config.dtype, config.drafter_dtype

    assert dtypes() == dtypes(device="cpu") == ("float32", "float32")
    assert dtypes(device="cuda:1") == ("bfloat16", "float32")
    assert dtypes(device="cuda", drafter="./small") == ("bfloat16", "bfloat16")
    assert dtypes(device="cuda", drafter="./small", drafter_device="cpu") == ("bfloat16", "float32")
    assert dtypes(device="cuda", dtype="float16", drafter="./small") == ("float16", "float16")
    monkeypatch.setattr(choice, "has_gpu", lambda: False)
    assert dtypes(device="auto")[0] == "float32"


@pytest.mark.parametrize("settings", [{}, {"model": "starter"}], ids=str)
def test_the_starter_pair_is_native_on_a_processor_only(
    settings: dict[str, str], pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dtype(device: str) -> str:
        return resolve_engine({**settings, "device": device}, environment={}).dtype

    monkeypatch.setattr(choice, "has_gpu", lambda: False)
    assert dtype("cpu") == dtype("auto") == "native" != dtype("cuda")
    monkeypatch.setattr(choice, "has_gpu", lambda: True)
    assert dtype("cpu") == "native" != dtype("auto")
    monkeypatch.setattr(choice, "has_native", lambda: False)
    assert dtype("cpu") in ("bfloat16", "float32")
