"""The import contracts of pyproject.toml: a toy tree keeps them, and planted imports break them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = (
    *("server", "engine", "startup", "speculation", "proposers", "verify", "models", "pair", "store"),
    *("text", "cli", "contract"),
)
PLUGINS = {
    "codespec_scale": ("application", "relay", "replica", "up"),
    "codespec_upstream": ("client", "probe", "prompt", "writer"),
}
LAYERS = "Imports run only downwards"
TORCH_FREE = "Text, pairs, the store, lengths and the contract know no model"
CONTRACT_LAYERS = "The contract's imports run only downwards"
STORE = "The store's imports run only downwards"
DOWNLOADS = "The catalogue and the downloads know no text"
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


# Checks each tree in a process of its own, forked after the import that takes most of the time.
CHECK_EACH = """
import os, sys
from importlinter.cli import lint_imports_command as run
for tree in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.chdir(tree)
        sys.path.insert(0, tree)
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT), 1)
        sys.argv[1:] = ["--no-cache", "--no-logo"]
        run()
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
Case = tuple[str, str, list[str]]  # module, planted line, violated contracts


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
    contract = ("limits", "hosts", "types", "declared", "body", "engine_config", "levels", "serve_config")
    light = (
        "regular_file",
        "git_ignore",
        "ignore_files",
        "bounded_json",
        "secret_files",
        "secret_text",
        "edit_rules",
        "proof",
        "user_folders",
        "json_store",
        "file_lock",
        "keys_file",
    )
    store = ("catalogue", "conversion_cache", "disk", "hub", "pull", "pulled", "source", "wheel")
    modules = (*(f"store/{name}" for name in store), *(f"contract/{name}" for name in contract))
    for plugin, names in PLUGINS.items():
        for name in names:
            (tmp_path / plugin / f"{name}.py").touch()
    for module in ("errors", *light, *modules):
        (tmp_path / "codespec" / f"{module}.py").touch()
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return tmp_path


def broken(message: str, code: int) -> list[str]:
    """Return the violated contracts, by the start of their names, from the linter's output."""
    found = [line for line in message.splitlines() if line.endswith(" BROKEN")]
    assert bool(found) == bool(code), message
    names = (
        LAYERS,
        TORCH_FREE,
        STORE,
        DOWNLOADS,
        CONTROL,
        LSP,
        GRAMMARS,
        NATIVE,
        CONTRACT_LAYERS,
        LAB,
        LAB_LAYERS,
        CORPUS,
        ALONE,
        RAY,
        UPSTREAM,
        REMOTE,
    )
    return [name for name in names if any(line.startswith(name) for line in found)]


def plant(tree: Path, module: str, line: str) -> None:
    path = tree / module
    path.parent.mkdir(exist_ok=True)
    path.write_text(line + "\n")


ALLOWED = (
    ("codespec/text/a.py", "import codespec.contract.types, codespec.errors, tokenizers"),
    ("codespec/proposers/a.py", "import torch, codespec.models, codespec.text, codespec.verify"),
    ("codespec/verify/a.py", "import codespec.models, codespec.text"),
    ("codespec/engine/a.py", "import codespec.startup, codespec.proposers, codespec.verify"),
    ("codespec/startup/a.py", "import codespec.proposers, codespec.speculation, codespec.models"),
    ("codespec/cli/a.py", "import codespec.engine, codespec.server"),
    ("codespec_upstream/source.py", "import codespec.server, codespec_upstream.writer"),
    ("codespec_scale/up.py", "import codespec.client, codespec_scale.application, ray"),
    ("codespec_lab/commands/a.py", "import codespec.cli, codespec_lab.bench, codespec_lab.training"),
    (
        "codespec_lsp/a.py",
        "import codespec.contract.types, codespec.errors, codespec.contract.declared, codespec_grammars",
    ),
)
PLANTED: list[Case] = [
    ("codespec/contract/types.py", "import codespec.text", [LAYERS]),
    ("codespec/models/a.py", "import codespec.engine", [LAYERS]),
    ("codespec/engine/a.py", "import codespec.server", [LAYERS]),
    ("codespec/cli/a.py", "import codespec_scale", [LAB]),
    ("codespec_scale/replica.py", "import codespec.server", [ALONE]),
    ("codespec/models/a.py", "import ray", [RAY]),
    ("codespec/server/a.py", "import codespec_upstream", [LAB]),
    ("codespec_upstream/writer.py", "import torch", [UPSTREAM]),
    ("codespec_upstream/client.py", "import codespec_upstream.writer", [REMOTE]),
    ("codespec/startup/a.py", "import codespec.engine", [LAYERS]),
    ("codespec/server/a.py", "import codespec_lab.bench", [LAB]),
    ("codespec_lsp/a.py", "import codespec_lab.corpus", [LAB]),
    ("codespec_lab/bench/a.py", "import codespec_lab.training", [LAB_LAYERS]),
    ("codespec_lab/corpus/a.py", "import codespec_lab.training", [LAB_LAYERS]),
    ("codespec_lab/corpus/a.py", "import torch", [CORPUS]),
    ("codespec/proposers/a.py", "import codespec.speculation", [LAYERS]),
    ("codespec/attic.py", "", [LAYERS]),
    ("codespec/text/a.py", "import torch", [TORCH_FREE]),
    ("codespec/store/a.py", "import torch", [TORCH_FREE]),
    ("codespec/store/a.py", "import codespec.pair", [LAYERS]),
    ("codespec/text/a.py", "import codespec.store", [LAYERS]),
    ("codespec/store/pulled.py", "import codespec.text", [DOWNLOADS]),
    ("codespec/store/disk.py", "import codespec.store.pulled", [STORE]),
    ("codespec/contract/engine_config.py", "import codespec.store", [LAYERS]),
    ("codespec/contract/types.py", "import codespec.contract.levels", [CONTRACT_LAYERS]),
    ("codespec/text/a.py", "def late():\n    from transformers import AutoTokenizer", [TORCH_FREE]),
    ("codespec/speculation/a.py", "from torch.nn import Module", [TORCH_FREE]),
    ("codespec/speculation/a.py", "import codespec.verify", [CONTROL]),
    ("codespec_lsp/a.py", "import codespec.text", [LSP]),
    ("codespec_lsp/a.py", "from codespec import Engine", [LSP]),
    ("codespec_lsp/a.py", "import torch", [LSP]),
    ("codespec_grammars/a.py", "import codespec.contract.types", [GRAMMARS]),
    ("codespec_grammars/a.py", "import transformers", [GRAMMARS]),
    ("codespec_native/a.py", "import codespec.errors", [NATIVE]),
    ("codespec_native/a.py", "import torch", [NATIVE]),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Return the violated contracts of a tree with all allowed imports, then of each planted case."""
    trees = [make_tree(tmp_path_factory.mktemp("tree")) for _ in range(1 + len(PLANTED))]
    for module, line in ALLOWED:
        plant(trees[0], module, line)
    for tree, (module, line, _) in zip(trees[1:], PLANTED, strict=True):
        plant(tree, module, line)
    done = subprocess.run(
        [sys.executable, "-c", CHECK_EACH, *map(str, trees)],
        cwd=trees[0],
        env={"PATH": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    codes = [int(line) for line in done.stdout.split()]
    return [broken((tree / "said").read_text(), code) for tree, code in zip(trees, codes, strict=True)]


def test_allowed_imports_hold(results: list[list[str]]) -> None:
    assert results[0] == []


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=lambda number: ": ".join(PLANTED[number][:2]))
def test_planted_import_is_caught(number: int, results: list[list[str]]) -> None:
    assert results[1 + number] == PLANTED[number][2]
