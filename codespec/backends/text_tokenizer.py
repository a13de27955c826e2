"""Load the tokenizer of a model folder from its tokenizer.json, or with transformers if the folder has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from codespec.errors import ModelError, TokenizerError
from codespec.files import read_json
from codespec.text.tokenizer import TextTokenizer
from codespec.text.tokenizer_json import declared_eos_ids

_IN_USE: WeakValueDictionary[tuple[object, ...], TextTokenizer] = WeakValueDictionary()  # by file and its state


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Load the tokenizer of a model folder. Raise ModelError or TokenizerError for an unusable tokenizer."""
    if (folder / "tokenizer.json").is_file():
        try:
            return TextTokenizer.from_folder(folder)
        except TokenizerError as error:
            raise TokenizerError(error.fault.within(f"{folder} can't be used")) from error
    from transformers import AutoTokenizer  # takes seconds

    from codespec.backends.torch.model_check import FAILURES, one_line

    try:
        slow = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except FAILURES as error:
        raise ModelError(
            f"The tokenizer of {folder} can't be loaded ({one_line(error)})", "add a tokenizer.json to the folder"
        ) from error
    backend = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"The tokenizer of {folder} has no fast version", "add a tokenizer.json to the folder")
    config = {**read_json(folder / "special_tokens_map.json"), **read_json(folder / "tokenizer_config.json")}
    generation, model = read_json(folder / "generation_config.json"), read_json(folder / "config.json")
    eos = declared_eos_ids(generation, model, slow.eos_token_id)
    return TextTokenizer.from_backend(backend, eos_ids=eos, config=config)


def share_tokenizer(file: Path, read: Callable[[], TextTokenizer]) -> TextTokenizer:
    """Return the tokenizer already in use for a model file, or call `read` if there is none or the file has changed.

    An idle daemon frees its model but retains the tokenizer, which takes most of the loading time of a small model.
    """
    state = file.stat()
    key = (file, state.st_ino, state.st_size, state.st_mtime_ns)
    tokenizer = _IN_USE.get(key)
    if tokenizer is None:
        tokenizer = _IN_USE[key] = read()
    return tokenizer


def check_tokenizer(tokenizer: TextTokenizer, rows: int, folder: Path) -> None:
    """Raise ModelError if the tokenizer can produce ids that are not in the model's vocabulary of `rows` ids."""
    if any(tokenizer.token_bytes[rows:]):
        raise ModelError(
            f"The tokenizer of {folder} has {tokenizer.vocab_size} tokens, but its model has only {rows}",
            "use the tokenizer and weights of the same model",
        )
