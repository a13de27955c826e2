"""The import contracts of pyproject.toml: a toy tree keeps them, and planted imports break them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = (
    *("server", "engine", "startup", "speculation", "proposers", "verify", "backends", "pair", "store"),
    *("text", "cli", "api", "exclusions"),
)
PLUGINS = {
    "codespec_scale": ("application", "relay", "replica", "up"),
    "codespec_upstream": ("client", "probe", "prompt", "writer"),
}
LAYERS = "Imports run only downwards"
TORCH_FREE = "Text, pairs, the store, lengths and the interface know no model"
API_LAYERS = "The imports of api run only downwards"
STORE = "The store's imports run only downwards"
DOWNLOADS = "The store knows no text"
CONTROL = "How far to guess is decided without models"
LSP = "The language server takes"
GRAMMARS = "Grammars are a leaf"
NATIVE = "The native kernels are a leaf"
LAB = "The laboratory and the plugins use"
LAB_LAYERS = "The laboratory's imports run only downwards"
CORPUS = "The corpus knows no model"
ALONE = "Replicas reach the daemon as a process"
RAY = "Only the replicas know Ray"
UPSTREAM = "What another server writes"
REMOTE = "The upstream's imports run only downwards"


Case = tuple[str, str, str]  # module (`a` stands for one of its own), planted line, violated contract


def make_tree(tmp_path: Path) -> Path:
    """Make a tree of empty modules with our contracts."""
    for package in (
        "codespec",
        "codespec_lsp",
        "codespec_grammars",
        "codespec_lab",
        "codespec_native",
        *PLUGINS,
        *(f"codespec/{name}" for name in FLOORS),
        *(f"codespec_lab/{name}" for name in ("commands", "bench", "training", "corpus")),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    contract = ("limits", "types", "body", "settings", "config")
    light = ("files", "user_folders")
    store = ("catalogue", "conversions", "disk", "download", "pull", "pulled", "source")
    modules = (*(f"store/{name}" for name in store), *(f"api/{name}" for name in contract))
    for plugin, names in PLUGINS.items():
        for name in names:
            (tmp_path / plugin / f"{name}.py").touch()
    for module in ("errors", *light, *modules):
        (tmp_path / "codespec" / f"{module}.py").touch()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


def check(tree: Path) -> str:
    """Return the linter's report."""
    words = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    environment = {"PATH": "", "COLUMNS": "200", "PYTHONPATH": str(tree)}
    return subprocess.run(
        [*words, "--no-cache", "--no-logo"], cwd=tree, env=environment, capture_output=True, text=True, timeout=300
    ).stdout


def plant(tree: Path, module: str, line: str) -> None:
    path = tree / module
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(line + "\n")


ALLOWED = (
    ("codespec/text/a.py", "import codespec.api.types, codespec.errors, tokenizers"),
    ("codespec/proposers/a.py", "import torch, codespec.backends, codespec.text, codespec.verify"),
    ("codespec/verify/a.py", "import codespec.backends, codespec.text"),
    ("codespec/engine/a.py", "import codespec.startup, codespec.proposers, codespec.verify"),
    ("codespec/startup/a.py", "import codespec.proposers, codespec.speculation, codespec.backends"),
    ("codespec/cli/a.py", "import codespec.engine, codespec.server"),
    ("codespec_upstream/source.py", "import codespec.server, codespec_upstream.writer"),
    ("codespec_scale/up.py", "import codespec.client, codespec_scale.application, ray"),
    ("codespec_lab/commands/a.py", "import codespec.cli, codespec_lab.bench, codespec_lab.training"),
    (
        "codespec_lsp/a.py",
        "import codespec.api.types, codespec.errors, codespec.api.settings, codespec_grammars",
    ),
)
PLANTED: list[Case] = [
    ("codespec/api/types.py", "import codespec.text", LAYERS),
    ("codespec/backends/a.py", "import codespec.engine", LAYERS),
    ("codespec/engine/a.py", "import codespec.server", LAYERS),
    ("codespec/cli/a.py", "import codespec_scale", LAB),
    ("codespec_scale/replica.py", "import codespec.server", ALONE),
    ("codespec/backends/a.py", "import ray", RAY),
    ("codespec/server/a.py", "import codespec_upstream", LAB),
    ("codespec_upstream/writer.py", "import torch", UPSTREAM),
    ("codespec_upstream/client.py", "import codespec_upstream.writer", REMOTE),
    ("codespec/startup/a.py", "import codespec.engine", LAYERS),
    ("codespec/server/a.py", "import codespec_lab.bench", LAB),
    ("codespec_lsp/a.py", "import codespec_lab.corpus", LAB),
    ("codespec_lab/bench/a.py", "import codespec_lab.training", LAB_LAYERS),
    ("codespec_lab/corpus/a.py", "import codespec_lab.training", LAB_LAYERS),
    ("codespec_lab/corpus/a.py", "import torch", CORPUS),
    ("codespec/proposers/a.py", "import codespec.speculation", LAYERS),
    ("codespec/attic.py", "", LAYERS),
    ("codespec/text/a.py", "import torch", TORCH_FREE),
    ("codespec/store/a.py", "import torch", TORCH_FREE),
    ("codespec/store/a.py", "import codespec.pair", LAYERS),
    ("codespec/text/a.py", "import codespec.store", LAYERS),
    ("codespec/store/pulled.py", "import codespec.text", DOWNLOADS),
    ("codespec/store/disk.py", "import codespec.store.pulled", STORE),
    ("codespec/api/config.py", "import codespec.store", LAYERS),
    ("codespec/api/types.py", "import codespec.api.settings", API_LAYERS),
    ("codespec/text/a.py", "def late():\n    from transformers import AutoTokenizer", TORCH_FREE),
    ("codespec/speculation/a.py", "from torch.nn import Module", TORCH_FREE),
    ("codespec/speculation/a.py", "import codespec.verify", CONTROL),
    ("codespec_lsp/a.py", "import codespec.text", LSP),
    ("codespec_lsp/a.py", "from codespec import Engine", LSP),
    ("codespec_lsp/a.py", "import torch", LSP),
    ("codespec_grammars/a.py", "import codespec.api.types", GRAMMARS),
    ("codespec_grammars/a.py", "import transformers", GRAMMARS),
    ("codespec_native/a.py", "import codespec.errors", NATIVE),
    ("codespec_native/a.py", "import torch", NATIVE),
]


def own_module(number: int) -> str:
    """Return the module that a case's line is planted in."""
    return PLANTED[number][0].replace("/a.py", f"/a{number}.py")


def test_allowed_imports_hold(tmp_path: Path) -> None:
    tree = make_tree(tmp_path)
    for module, line in ALLOWED:
        plant(tree, module, line)
    report = check(tree)
    assert "0 broken" in report, report


@pytest.fixture(scope="module")
def violations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the report says of each violated contract, by the contract's name, of a tree with all that is
    planted.
    """
    tree = make_tree(tmp_path_factory.mktemp("tree"))
    for number, (_, line, _) in enumerate(PLANTED):
        plant(tree, own_module(number), line)
    _, _, details = check(tree).partition("Broken contracts\n")
    parts = re.split(r"^(.+)\n-+\n", details, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=lambda number: ": ".join(PLANTED[number][:2]))
def test_planted_import_is_caught(number: int, violations: dict[str, str]) -> None:
    (details,) = (found for name, found in violations.items() if name.startswith(PLANTED[number][2]))
    assert re.search(rf"\b{own_module(number).removesuffix('.py').replace('/', '.')}\b", details), details
