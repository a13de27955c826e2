"""Damaged files of the daemon: each is set aside with one note, and the daemon starts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Models
from tests.cli.conftest import light_models as models  # noqa: F401
from tests.cli.processes import user_environment
from tests.server.test_process import daemon

NESTED = "[" * 100_000 + "]" * 100_000
PATH = "/v1/codespec/complete"


def spoiled(value: Any, by: Any) -> Any:
    """Return the value with every leaf and every empty part replaced."""
    if isinstance(value, dict) and value:
        return {name: spoiled(inner, by) for name, inner in value.items()}
    if isinstance(value, list) and value:
        return [spoiled(inner, by) for inner in value]
    return by


def whole(content: Any) -> str:
    return json.dumps({"format": 1, "content": content})


DAMAGES: dict[str, Callable[[Any], str]] = {
    "nested": lambda content: f'{{"format": 1, "content": {{"a": {NESTED}}}}}',
    "lists": lambda content: whole({name: [] for name in content}),
    "infinite": lambda content: whole(spoiled(content, "HUGE")).replace('"HUGE"', "1e999"),
}


@pytest.fixture(scope="module")
def kept(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Any]:  # noqa: F811
    """Return the files a daemon stores."""
    homes = tmp_path_factory.mktemp("homes")
    live(models, homes)
    found = {file: json.loads(file.read_text())["content"] for file in sorted(homes.rglob("*.json"))}
    rooms = {file.parent.name for file in found}
    assert {"acceptance", "costs", "reading"} <= rooms, rooms
    return found


def live(models: Models, homes: Path) -> str:  # noqa: F811
    """Run a daemon for one request, to its end; return its output."""
    environment = user_environment(XDG_STATE_HOME=str(homes / "state"), XDG_CACHE_HOME=str(homes / "cache"))
    words = [*models.pair, "--warmup", "0"]
    with daemon(*words, env=environment) as served:
        served.until_ready()
        body = {"prefix": "def f(x):\n", "max_tokens": 8, "shape": "raw"}
        assert served.ask("POST", PATH, body)[0] == 200
        code, _, err = served.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err, err
    return err


def test_it_starts_and_says_it_once(kept: dict[Path, Any], models: Models) -> None:  # noqa: F811
    """Each file is damaged in one way; the readers' own tests try all of them."""
    homes = next(iter(kept)).parents[3]
    for (file, content), damage in zip(kept.items(), cycle(DAMAGES.values())):
        file.write_text(damage(content))
    err = live(models, homes)
    aside = sorted(homes.rglob("*.corrupt"))
    assert [file.name for file in aside] == [f"{file.name}.corrupt" for file in sorted(kept)], err
    for file in aside:
        assert err.count(f"set aside as {file}") == 1 and json.loads((file.with_suffix("")).read_text())
