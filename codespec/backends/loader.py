"""Load a model by name, with the backend for its number format and device.

Torch is imported only for models that the native kernels do not support.
"""

from __future__ import annotations

import hashlib
import importlib.util
from typing import Any

from codespec.backends.language_model import LanguageModel
from codespec.errors import ModelError, install_fix
from codespec.store.machine import require_kernels
from codespec.store.resolve import NATIVE, ModelFiles, resolve


def load_model(name: str, *, device: str = "cpu", dtype: str = "float32", exact: bool = True) -> LanguageModel:
    """Load a model by `name`: a local folder in the Hugging Face layout, a GGUF file, a pulled model, or a hub id."""
    return load_files(resolve(name).open(dtype), device=device, dtype=dtype, exact=exact)


def load_files(files: ModelFiles, *, device: str = "cpu", dtype: str = "float32", exact: bool = True) -> LanguageModel:
    """Load a model, without cache slots, from files that were opened for this number format.

    With dtype "native", the native kernels compute whole steps of a Llama-shaped model, and only the matrix products of
    any other model. Raises ModelError for damaged files, unsupported architectures, and unknown dtypes and devices.
    """
    if dtype == NATIVE:
        if device not in ("cpu", "auto"):
            raise ModelError("dtype native runs only on a CPU", "use dtype bfloat16, or device cpu")
        return _load_native(files, exact)
    from codespec.backends.torch.loader import load_torch_files

    return load_torch_files(files, device=device, dtype=dtype, exact=exact)


def model_facts(model: LanguageModel) -> dict[str, Any]:
    """Return a model's name, parameter count, vocabulary size, and the SHA-256 of its weights and tokenizer."""
    folder, digest = model.folder, hashlib.sha256()
    assert folder is not None
    files = [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("tokenizer.*"))]
    for file in files if folder.is_dir() else [folder]:
        with file.open("rb") as stream:  # weights may exceed free memory
            hashlib.file_digest(stream, lambda: digest)
    return {
        "name": folder.name,
        "parameters": model.spec.parameters,
        "vocabulary": model.spec.vocab_size,
        "sha256": digest.hexdigest(),
    }


def _load_native(files: ModelFiles, exact: bool) -> LanguageModel:
    require_kernels()
    from codespec.backends.native.model import load_native_model
    from codespec.backends.native.weights import Unsupported

    try:
        return load_native_model(files, exact)
    except Unsupported as unsupported:
        if importlib.util.find_spec("torch") is None:
            raise ModelError(unsupported.fault.what, f"to use torch, {install_fix('torch')}") from unsupported
    from codespec.backends.torch.loader import load_torch_files

    floats = files if files.path.is_dir() else files.ref.open("float32")
    return load_torch_files(floats, dtype=NATIVE, exact=exact)
