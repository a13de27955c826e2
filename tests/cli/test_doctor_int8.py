"""`codespec doctor` on int8: the kernel and the range of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from codespec.cli.checks import engine as engine_checks
from codespec.contract.engine_config import EngineConfig
from codespec.errors import ModelError
from codespec.finding import Finding
from codespec.models.int8 import kernels
from codespec.models.int8.kernels import FBGEMM, FULL, HALF, Choice
from tests.cli.doctors import Look, fixture_look  # noqa: F401
from tests.server import fakes
from tests.server.daemons import serving

NAME = "qwen2.5-coder-0.5b-instruct"
CONFIG = EngineConfig(target=NAME, dtype="int8")

Choose = Callable[..., None]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Make this processor choose FBGEMM and this range."""

    def instead(most: int = FULL, slow: bool = False) -> None:
        monkeypatch.setattr(kernels, "choose_kernel", lambda: Choice(FBGEMM, most, slow))

    instead()
    return instead


def found(config: EngineConfig = CONFIG, told: str = "") -> dict[str, Finding]:
    return {finding.name: finding for finding in engine_checks.check_kernels(config, told)}


def test_which_kernel_and_which_range(choose: Choose) -> None:
    assert found()["kernel"] == Finding("kernel", "ok", "int8 products by FBGEMM, weights within ±127 (all 8 bits)")
    choose(HALF)
    why = "this processor's fast products add two at a time in 16 bits, which larger weights overflow"
    assert found()["kernel"].said == f"int8 products by FBGEMM, weights within ±63 (7 of 8 bits: {why})"


def test_a_slow_kernel_is_a_warning(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(slow=True)
    finding = found()["kernel"]
    assert finding.state == "warning" and "more than 10 times as long as a float32 product" in finding.said
    for known, other in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(engine_checks, "computes_bfloat16", lambda known=known: known)
        assert found()["kernel"].mend.endswith(f'set dtype = "{other}"')


def test_a_processor_without_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Choice:
        raise ModelError("int8 is not available on this processor (a: b; c: d)", "use dtype bfloat16 or float32")

    monkeypatch.setattr(kernels, "choose_kernel", fail)
    (finding,) = found().values()
    assert (finding.name, finding.state, finding.mend) == ("kernel", "failed", "use dtype bfloat16 or float32")


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (CONFIG, ["kernel"]),
        (replace(CONFIG, dtype="bfloat16"), []),
        (replace(CONFIG, dtype="bfloat16", drafter_dtype="int8"), ["kernel"]),
        (replace(CONFIG, dtype="bfloat16", drafter_dtype="int8", drafter="none"), []),
        (replace(CONFIG, device="cuda"), []),
        (replace(CONFIG, device="auto"), ["kernel"]),
    ],
    ids=["target", "none", "drafter", "no drafter", "on a GPU", "no GPU"],
)
def test_only_where_int8_is_computed(
    config: EngineConfig, names: list[str], choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_checks, "has_gpu", lambda: False)
    assert list(found(config)) == names


def test_a_daemons_kernel_is_the_one_in_use(choose: Choose) -> None:
    assert found(told="oneDNN, weights within ±127 (all 8 bits)")["kernel"].said.startswith("int8 products by oneDNN, ")


def test_doctor_says_it(look: Look, models: object, choose: Choose) -> None:
    assert "kernel" not in look()
    told = look("--dtype", "int8")
    assert told["kernel"] == "ok: int8 products by FBGEMM, weights within ±127 (all 8 bits)"
    engine = fakes.FakeEngine()
    engine.kernel = "oneDNN, so and so"
    with serving(engine) as served:
        told = look("--dtype", "int8", "--url", f"http://127.0.0.1:{served.port}")
        assert told["kernel"] == "ok: int8 products by oneDNN, so and so"
