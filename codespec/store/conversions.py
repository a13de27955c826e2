"""Convert GGUF files to float weights and merge peft adapters into models; cache the resulting folders by hash.

A corrupt source may crash the converter, so the converter runs in a separate process, and a crash is reported as a
ModelError. A converted folder gets its final name only when it is complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from codespec.errors import ModelError, quoted
from codespec.files import Kept, Unreadable, lock_file, open_regular, read_json, read_json_file
from codespec.store.disk import drop, locked, say
from codespec.store.model_folder import read_header
from codespec.store.pulled import MANIFEST
from codespec.user_folders import cache_folder

FORMAT = 1  # version of converted folders; a folder of another version is converted again
SOURCE = "codespec_source"  # key in a converted folder's config.json: the origin of its weights
# Keys below SOURCE: the SHA-256 of the GGUF file, or of each weight file, of the model that the folder was made from.
BASE_FILE, BASE_WEIGHTS = "base_sha256", "base_weights"
MTIME_GRANULARITY_S = 2.0  # seconds after a file's mtime in which another write might leave the mtime unchanged
START = (sys.executable, "-P", "-m")
START_TIMEOUT_S, MIN_BYTES_PER_S = 300.0, 2e6  # the timeout of a converter grows with its input
BAR_DELAY_S, BAR = 3.0, "{desc} {percentage:3.0f}%|{bar}|"  # of the progress bar
NO_SPACE = os.strerror(errno.ENOSPC)
SHARE = re.compile(r"[01]\.\d{4}")  # a converter's progress on stdout
SHA256 = re.compile("[0-9a-f]{64}")
MAX_INDEXED = 200  # files in the index of hashes

GGUF_CONVERTER, ADAPTER_MERGER = "codespec.backends.gguf.convert", "codespec.backends.torch.merge_adapter"
TEXTS_ONLY = "--texts"  # flag of the converter: write configuration and tokenizer, but no weights
# The entry in a GGUF header: its key, the type of strings, eight bytes of length, the architecture.
_GGUF_ARCHITECTURE = re.compile(rb"general\.architecture\x08\0\0\0(.)\0{7}([a-z0-9]+)", re.DOTALL)
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FOREIGN = ("layer_replication", "target_parameters", "megatron_config")  # settings for more than a model's own layers
_NAMING = ("modules_to_save", "rank_pattern", "alpha_pattern")  # settings whose entries peft matches as regexes
_LITERAL = re.compile(r"\^?[A-Za-z0-9_.]{1,200}")  # the name of a layer or its end; such a regex never backtracks
_ADAPTED = re.compile(r"base_model\.model\.(.+)\.lora_(?:A\.weight|embedding_A)")
# Configuration, chat template and tokenizer; without tokenizer.json, the tokenizer is in merges.txt or *.model.
TEXTS = ("*.json", "*.jinja", "merges.txt", "*.model")


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion, which the command `python -m MODULE SOURCE… FOLDER DIGEST` performs."""

    digest: str  # name of the folder in the cache
    module: str
    sources: tuple[str, ...]
    progress: str  # message for the user at the start; "": none
    failed: str  # problem in the error message
    fix: str
    nbytes: int  # size of the sources, from which the timeout follows


def convert_gguf(file: Path) -> Path:
    """Return a folder with a GGUF file's weights in float32, from the cache or newly converted. Raises ModelError."""
    with _readable(file):
        return _convert_file(file, hash_once(file), (), f"converting {file.name} (once)")


def texts_of(file: Path) -> Path:
    """Return a folder with a GGUF file's configuration and tokenizer, possibly without weights. Raises ModelError."""
    with _readable(file):
        floats = converted_home() / hash_once(file)  # has configuration and tokenizer too
        if _is_complete(floats):
            return floats
        digest = hashlib.sha256(f"texts 1\n{file.name} {floats.name}".encode()).hexdigest()
        return _convert_file(file, digest, (TEXTS_ONLY,), "")


def _convert_file(file: Path, digest: str, flags: tuple[str, ...], progress: str) -> Path:
    failed, fix = f"{file} could not be converted", "use a folder of the model in the Hugging Face layout"
    size = file.stat().st_size
    return convert_once(Conversion(digest, GGUF_CONVERTER, (*flags, str(file.absolute())), progress, failed, fix, size))


def merge_adapter(base: Path, adapter: Path) -> Path:
    """Return a folder with an adapter merged into a model, from the cache or newly merged. Raises ModelError."""
    check_adapter(adapter)
    with _readable(adapter):
        weights = (*sorted(base.glob("*.safetensors")), adapter / ADAPTER_WEIGHTS)
        parts = [f"{file.name} {hash_once(file)}\n" for file in (*weights, *text_files(base), *text_files(adapter))]
        conversion = Conversion(
            hashlib.sha256("".join(parts).encode()).hexdigest(),
            ADAPTER_MERGER,
            (str(base.absolute()), str(adapter.absolute())),
            progress=f"merging the adapter {adapter} into its model (once)",
            failed=f"The adapter {adapter} could not be merged",
            fix="merge the adapter with peft on another machine",
            nbytes=sum(file.stat().st_size for file in weights),
        )
        return convert_once(conversion)


def text_files(folder: Path) -> list[Path]:
    """Return the files in a folder that hold the configuration, the tokenizer or the chat template."""
    return sorted(file for pattern in TEXTS for file in folder.glob(pattern) if file.name != MANIFEST)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert an OSError to a ModelError that names the file in the error, or `path` if the error names no file."""
    try:
        yield
    except OSError as error:
        where, why = error.filename or path, error.strerror or error
        raise ModelError(f"{where} can't be used ({why})", "check the path and its permissions") from error


def gguf_architecture(file: Path) -> str:
    """Return the architecture named in the first 64 KiB of a GGUF file, or "" if there is none. Raises OSError."""
    with open_regular(file) as stream:
        match = _GGUF_ARCHITECTURE.search(stream.read(1 << 16))
    return match[2][: match[1][0]].decode() if match is not None else ""


def source_parameters(config: Mapping[str, Any]) -> int:
    """Return the number of parameters that `texts_of` recorded in a config.json, or 0 for any other configuration."""
    count = _mapping(config.get(SOURCE)).get("parameters", 0)
    return count if isinstance(count, int) else 0


def source_quantization(config: Mapping[str, Any]) -> str:
    """Return the number format ("Q4_1") of the GGUF file from which a config.json was converted, or "" if unknown."""
    return str(_mapping(config.get(SOURCE)).get("quantization", ""))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def is_adapter(folder: Path) -> bool:
    """Return whether a folder contains a peft adapter and no model."""
    return (folder / ADAPTER_CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def base_model_name(adapter: Path) -> str:
    """Return the name of the model that an adapter was trained for; raise ModelError if the adapter names none."""
    name = read_json(adapter / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{adapter / ADAPTER_CONFIG} names no base model", "set base_model_name_or_path in this file")
    return name


def check_adapter(adapter: Path) -> None:
    """Raise ModelError if an adapter is not a LoRA adapter, or if its settings state larger sizes than its weights."""
    settings, tensors = read_json(adapter / ADAPTER_CONFIG), read_header(adapter / ADAPTER_WEIGHTS)
    if settings.get("peft_type") != "LORA" or any(settings.get(name) for name in _FOREIGN):
        raise ModelError(
            f"The adapter {adapter} is of an unsupported kind",
            "use a LoRA adapter without layer_replication, target_parameters and megatron_config",
        )
    for name in _NAMING:
        named = settings.get(name) or []
        fits = isinstance(named, list | dict) and len(named) <= len(tensors)
        if not fits or not all(isinstance(value, str) and _LITERAL.fullmatch(value) for value in named):
            raise ModelError(
                f"{name} in the adapter {adapter} contains entries that are not layer names",
                "list layer names instead of regular expressions",
            )
    tokens = settings.get("trainable_token_indices")
    lists = tokens.values() if isinstance(tokens, dict) else [tokens]
    listed = sum(len(each) for each in lists if isinstance(each, list))
    ranks = [settings.get("r"), *_mapping(settings.get("rank_pattern")).values()]
    matrices = [tensor.shape for tensor in tensors if len(tensor.shape) == 2]
    for what, claimed, held in (
        ("rank", max(ranks, key=_size), max(map(min, matrices), default=0)),
        ("number of tokens", listed, max((tensor.shape[0] for tensor in tensors if tensor.shape), default=0)),
    ):
        if _size(claimed) > held:
            problem = f"The adapter {adapter} states the {what} {claimed}, but its weights have {held}"
            raise ModelError(problem, "download the adapter again")


def _size(value: Any) -> float:
    return value if isinstance(value, int) else inf


def adapted_layers(adapter: Path) -> list[str]:
    """Return the names of the adapted layers, from an adapter's weights and not from regular expressions."""
    matches = (_ADAPTED.fullmatch(tensor.name) for tensor in read_header(adapter / ADAPTER_WEIGHTS))
    return sorted({match[1] for match in matches if match is not None})


def convert_once(conversion: Conversion) -> Path:
    """Return the folder of a conversion; if the folder is not cached, run the converter. Raises ModelError."""
    folder = converted_home() / conversion.digest
    if _is_complete(folder):
        return folder
    part = folder.with_suffix(".part")
    with locked(folder.with_suffix(".lock"), "another process is converting this model: waiting for it", say):
        if _is_complete(folder):  # the other process has converted it
            return folder
        drop(part)  # a killed process may have left a partial folder
        part.mkdir()
        if conversion.progress:
            say(conversion.progress)
        try:
            run_converter(conversion, part)
            drop(folder)  # a folder of another format version
            os.rename(part, folder)
        finally:
            drop(part)
    return folder


def converted_home() -> Path:
    """Return the cache folder that contains the converted models and the index of file hashes."""
    return cache_folder() / "gguf"


def _source(folder: Path) -> Mapping[str, Any]:
    """Return the object under the key SOURCE in a converted folder's config.json, or {} for any other folder."""
    try:
        return _mapping(read_json_file(folder / "config.json")[SOURCE])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _is_complete(folder: Path) -> bool:
    return bool(_source(folder).get("format") == FORMAT)


def run_converter(conversion: Conversion, folder: Path) -> None:
    """Run the converter, which writes to `folder`; raise ModelError if the converter fails, crashes or is too slow."""
    seconds = START_TIMEOUT_S + conversion.nbytes / MIN_BYTES_PER_S
    command = [*START, conversion.module, *conversion.sources, str(folder), conversion.digest]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        expired = threading.Event()

        def give_up() -> None:
            expired.set()
            process.kill()

        late = threading.Timer(seconds, give_up)
        late.start()
        try:
            _show_progress(process)
            code = process.wait()
        finally:
            late.cancel()
            process.kill()
            process.wait()
        errors.seek(0)
        last = (errors.read().decode("utf-8", "replace").strip().splitlines() or [""])[-1]
    if NO_SPACE in last:
        what = f"{conversion.failed}, because the disk of {folder.parent} is full"
        raise ModelError(what, "free some space, or set XDG_CACHE_HOME to another folder")
    if code == 2 and last:
        raise ModelError(quoted(last))
    if code < 0 and expired.is_set():
        raise ModelError(f"{conversion.failed} within {seconds:.0f} s", conversion.fix)
    if code:
        why = f"signal {-code}" if code < 0 else last[:160] or f"exit code {code}"
        raise ModelError(f"{conversion.failed} ({why})", f"free some memory, or {conversion.fix}")


def _show_progress(process: subprocess.Popen[str]) -> None:
    """Show the progress that a converter prints, as fractions from 0 to 1, in a bar on a terminal. Skip other lines."""
    from tqdm import tqdm

    assert process.stdout is not None
    bar = tqdm(total=1.0, desc="codespec: converting", bar_format=BAR, delay=BAR_DELAY_S, disable=None)
    with process.stdout as lines, bar:
        for line in lines:
            if SHARE.fullmatch(line.strip()):
                bar.update(float(line) - bar.n)


def base_of(folder: Path, weights: Sequence[Path]) -> dict[str, Any]:
    """Return the entries under SOURCE that identify the model in `folder`, or the model it was converted from."""
    if folder.parent != converted_home():
        return {BASE_WEIGHTS: {file.name: hash_once(file) for file in weights}}
    source = _source(folder)
    return {key: source[key] for key in (BASE_FILE, BASE_WEIGHTS) if key in source} or {BASE_FILE: source["sha256"]}


def made_from(sha256: Mapping[str, str], model: str) -> list[Path]:
    """Return the folders made from a model with these file hashes; `model` is its GGUF file ("": a folder)."""
    digest, folders = sha256.get(model, ""), []
    if SHA256.fullmatch(digest):
        folders.append(converted_home() / digest)
    for file in sorted(converted_home().glob("*/config.json")):
        source = _source(file.parent)
        weights = _mapping(source.get(BASE_WEIGHTS))
        of_weights = bool(weights) and all(sha256.get(name) == value for name, value in weights.items())
        if of_weights or (digest and source.get(BASE_FILE) == digest):
            folders.append(file.parent)
    return folders


def remove_converted(folder: Path) -> None:
    """Delete a converted folder under its lock, after renaming it so that no process finds it partly deleted."""
    part = folder.with_suffix(".part")
    with lock_file(folder.with_suffix(".lock")):
        drop(part)
        if folder.is_dir():
            os.rename(folder, part)
            drop(part)


def hash_once(file: Path) -> str:
    """Return a file's SHA-256, from the index unless the file has changed; raise ModelError for a pipe or device."""
    place, state = str(file.absolute()), file.stat()
    index: Kept[dict[str, list[Any]]] = Kept(converted_home() / "index.json", "index of hashes", _parse_index, dict)
    known, mark = index.load([]) or {}, [state.st_size, state.st_mtime_ns]
    if place in known and known[place][:2] == mark:
        return str(known[place][2])
    try:
        with open_regular(file) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except Unreadable as error:
        raise ModelError(f"{file} can't be used ({error})", "remove this file, or download the model again") from error
    if time.time_ns() - state.st_mtime_ns > MTIME_GRANULARITY_S * 1e9:
        known.pop(place, None)
        index.save({**dict(list(known.items())[1 - MAX_INDEXED :]), place: [*mark, digest]}, [])
    return digest


def _parse_index(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the valid entries of the index of hashes, which maps a path to [size, mtime in ns, SHA-256]."""
    entries = {place: value for place, value in values.items() if isinstance(value, list) and len(value) == 3}
    return {place: value for place, value in entries.items() if SHA256.fullmatch(str(value[2]))}
