"""The pinned requirements: with hashes, without URLs, and with the versions chosen in constraints.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from codespec_native import build
from packaging.markers import Marker
from packaging.requirements import Requirement

from tools import lock_requirements
from tools.lock_requirements import LockError, Pin, canonical, file_text, lock, main, read_pins
from tools.make_venv import ZIG
from tools.pack_server import CARRIED, TARGETS

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("base", "torch", "cuda", "build", "zig")
ANY = "a" * 64


def text_of(kind: str) -> str:
    return (ROOT / "requirements" / f"{kind}.txt").read_text(encoding="utf-8")


def pins_of(kind: str) -> dict[str, Pin]:
    pins = read_pins(text_of(kind))
    assert len({pin.name for pin in pins}) == len(pins)
    return {pin.name: pin for pin in pins}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(";")[0].strip().split("==") for line in lines if "==" in line]
    return {canonical(name): version for name, version in pairs}


def wanted(extra: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(each) for each in [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pin_has_hashes_and_the_version_of_the_constraints(kind: str) -> None:
    decided = constraints() | {"ziglang": ZIG.partition("==")[2]}
    for pin in pins_of(kind).values():
        assert pin.hashes, pin.name
        if kind != "cuda" or pin.name in decided:  # torch chooses NVIDIA's libraries itself
            assert pin.version == decided[pin.name], pin.name
        if pin.marker:
            Marker(pin.marker)


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_says_where_packages_come_from(kind: str) -> None:
    text = text_of(kind)
    assert "://" not in text and not re.search(r"^\s*-(?!-hash=sha256:)", text, re.MULTILINE)


@pytest.mark.parametrize(("kind", "extra"), [("base", ""), ("torch", "torch"), ("torch", "engine")])
def test_all_that_the_project_asks_for_is_pinned(kind: str, extra: str) -> None:
    pins = pins_of(kind)
    for requirement in wanted(extra):
        assert requirement.specifier.contains(pins[canonical(requirement.name)].version), requirement


def test_torch_holds_the_base_and_cuda_holds_the_rest() -> None:
    base, torch, cuda = pins_of("base"), pins_of("torch"), pins_of("cuda")
    assert {name: pin.hashes for name, pin in base.items()}.items() <= {
        name: pin.hashes for name, pin in torch.items()
    }.items()
    assert not base.keys() & {"torch", "transformers", "peft", "safetensors"}
    assert not torch.keys() & cuda.keys() and any(name.startswith("nvidia-") for name in cuda)
    assert all("linux" in pin.marker.lower() for pin in cuda.values())


def test_the_extension_carries_what_it_installs() -> None:
    source = (ROOT / "editors/vscode/src/source.ts").read_text(encoding="utf-8")
    assert re.findall(r'"requirements-(\w+)\.txt"', source) == [CARRIED]


def test_the_kernels_and_the_tools_name_the_same_compiler_and_machines() -> None:
    assert (build.ZIG, tuple(f"{target.machine}-{target.system}" for target in build.TAGS)) == (ZIG, TARGETS)


class FakeTools:
    """Replaces uv and pip."""

    def __init__(self, cpu: str | None = None) -> None:
        self.cpu = cpu

    def compile(self, source: str, *extras: str, given: str = "") -> list[Pin]:
        whole = ["nvidia-x", "torch", "tqdm", "triton"]
        names = [given.partition("=")[0].strip()] if given else whole if extras else ["tqdm"]
        return [Pin(name, "1", "", (ANY,)) for name in names]

    def cpu_torch(self, version: str) -> str | None:
        assert version == "1"
        return self.cpu


@pytest.mark.parametrize("cpu", [None, ANY, "b" * 64])
def test_what_the_lock_puts_where(cpu: str | None) -> None:
    tools: Any = FakeTools(cpu)
    found = {kind: {pin.name: pin for pin in pins} for kind, pins in lock(tools).items()}
    assert {kind: set(pins) for kind, pins in found.items()} == {
        "base": {"tqdm"},
        "torch": {"torch", "tqdm"},
        "cuda": {"nvidia-x", "triton"},
        "build": {"hatchling"},
        "zig": {"ziglang"},
    }
    assert found["torch"]["torch"].hashes == ((ANY, cpu) if cpu and cpu != ANY else (ANY,))


def test_a_file_reads_back_as_it_was_written() -> None:
    pins = [Pin("a-b", "1.0", "", (ANY, "b" * 64)), Pin("c", "2", "sys_platform == 'win32'", ("c" * 64,))]
    assert read_pins(file_text("base", pins)) == pins
    for line in ("--index-url https://x", "a>=1", "    --hash=md5:0", "-e ."):
        with pytest.raises(ValueError, match="no pin"):
            read_pins(f"{line}\n")


def test_a_lock_that_fails_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise LockError("lock: `uv` failed")

    monkeypatch.setattr(lock_requirements, "ROOT", tmp_path)
    monkeypatch.setattr(lock_requirements, "Tools", fail)
    assert main() == 1
    assert capsys.readouterr().err == "lock: `uv` failed\n" and not list(tmp_path.iterdir())
