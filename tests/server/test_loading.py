"""The names that the daemon reports for its model: all that requests may use, and no path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codespec.api.config import SHIPPED, EngineConfig
from codespec.server.daemon import Loaded
from codespec.server.engine_thread import model_names, public_name
from codespec.store.pulled import Pulled, folder_of
from tests.server.daemons import serving_load
from tests.server.fakes import FakeEngine

SMALL = ("qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ("starter",)),
        ({"model": "starter"}, ("starter",)),
        ({"model": "smollm2-135m", "target": "smollm2-135m"}, ("smollm2-135m",)),  # from a wheel: no hub id
        ({"model": SMALL[0], "target": SMALL[0]}, SMALL),
        ({"target": SMALL[0]}, SMALL),
        ({"target": SMALL[1]}, SMALL),
        ({"model": "mine", "target": "mine"}, ("mine",)),
        ({"target": "mine"}, ("mine",)),
        ({"target": "elsewhere"}, ()),
        ({"target": "/a/mine"}, ()),
    ],
)
def test_the_names_of_a_model(
    settings: dict[str, Any], names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    place = folder_of("mine")
    place.mkdir(parents=True)
    Pulled("mine", "a test", "", "", {}, 0, "").write_manifest(place)
    assert model_names(EngineConfig(**settings)) == names


def test_who_asks_is_told_them() -> None:
    loaded = Loaded.of(FakeEngine(), "toy", 512, 4, names=SMALL)  # type: ignore[arg-type]
    with serving_load(lambda _: loaded) as served:
        assert served.ask("GET", "/health").json["names"] == list(SMALL)


def test_a_folder_beside_ours_is_not_ours() -> None:
    assert public_name(str(SHIPPED / "target")) == "codespec-starter"
    assert public_name(str(SHIPPED / "qwen-drafter")) == "codespec-qwen-drafter", "it is not the starter pair's"
    assert public_name(f"{SHIPPED}-of-mine/target") == "target"
