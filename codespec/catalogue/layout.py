"""Which files make a model in the Hugging Face layout, and which are left where they are.

Knows file names only: weights as safetensors, the configuration, the tokenizer, licence and card. Never pickles and
never code; never a file in a sub-folder, or with a name that could lead out of its folder.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

from codespec.catalogue.store import MANIFEST
from codespec.errors import ModelError

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,120}")
_WEIGHTS = "model*.safetensors"
_WANTED = (_WEIGHTS, "*.json", "*.jinja", "LICEN[CS]E*", "NOTICE*", "README.md", "USE_POLICY*")
_NEEDED = ("config.json", "tokenizer.json")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def is_wanted(file: str) -> bool:
    """Whether a file of a repository or folder is taken."""
    plain = bool(_PLAIN.fullmatch(file)) and file != MANIFEST
    return plain and any(fnmatchcase(file, pattern) for pattern in _WANTED)


def check_complete(files: Collection[str], label: str) -> None:
    """Raises ModelError in one sentence if these files make no model that is read here."""
    if not any(is_wanted(file) and fnmatchcase(file, _WEIGHTS) for file in files):
        raise ModelError(f"{label} cannot be used: {_why_no_weights(files)}.")
    missing = [file for file in _NEEDED if file not in files]
    if missing:
        raise ModelError(f"{label} lacks {' and '.join(missing)}: choose a complete model in the Hugging Face layout.")


def _why_no_weights(files: Collection[str]) -> str:
    if any(fnmatchcase(file, pattern) for file in files for pattern in _PICKLED):
        return "its weights are pickled, and a pickle can run code when it is loaded; choose one with safetensors files"
    if any(file.lower().endswith(".gguf") for file in files):
        return "it holds GGUF files; download the one you want and run `codespec models pull FILE.gguf`"
    return "it holds no model*.safetensors; choose a model in the Hugging Face layout"
