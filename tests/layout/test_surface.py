"""The public API: its names, and that accessing them imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import codespec

PUBLIC = [
    "CodespecError",
    "Completion",
    "CompletionRequest",
    "ConfigError",
    "Counts",
    "DoneEvent",
    "Engine",
    "Event",
    "ModelError",
    "PairError",
    "RequestError",
    "RoundEvent",
    "Snippet",
    "Stats",
    "TextEvent",
    "TokenizerError",
]
# Block the import of torch, transformers and aiohttp, then run the code paths of an editor's machine.
WITHOUT_TORCH = """
import importlib, pkgutil, sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["aiohttp"] = None
import codespec, codespec_lsp, codespec_grammars
for name in codespec.__all__:
    if name != "Engine":
        getattr(codespec, name)
for package in ("codespec.text", "codespec.speculation", "codespec.client"):
    module = importlib.import_module(package)
    for part in pkgutil.walk_packages(module.__path__, package + "."):
        importlib.import_module(part.name)
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_public_names() -> None:
    assert codespec.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(codespec))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_name_is_there(name: str) -> None:
    value = getattr(codespec, name)
    assert value is getattr(codespec, name)
    assert name in (getattr(value, "__name__", name), "Event")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = codespec.Motor


def test_editor_side_works_without_torch_and_transformers() -> None:
    done = run_python(WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr


def test_import_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "tokenizers", "numpy", "codespec.api.types")
    done = run_python(f"import codespec, sys; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_commands_load_nothing_heavy_before_they_run() -> None:
    heavy = ("torch", "transformers", "tokenizers", "numpy", "aiohttp", "pygls")
    done = run_python(f"import codespec.cli, sys; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
