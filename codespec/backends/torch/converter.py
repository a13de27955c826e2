"""Run converters as processes, and write the files of a converted model. Does not import torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from codespec.errors import CodespecError
from codespec.files import copy_regular
from codespec.store.conversions import text_files
from codespec.store.weights import StoredTensor


def convert_to_exit_code(convert: Callable[..., None], arguments: Sequence[str]) -> int:
    """Call `convert` with the arguments SOURCE… FOLDER SHA256.

    Return the exit code: 0, or 2 after printing one sentence to stderr.
    """
    *sources, folder, digest = arguments
    source = sources[-1]
    try:
        convert(*map(Path, sources), Path(folder), digest)
    except CodespecError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        why = error.strerror or error
        print(f"{source} can't be converted into {folder} ({why}): free some space there.", file=sys.stderr)
        return 2
    except MemoryError:
        print(f"There is not enough memory to convert {source}: close other programs.", file=sys.stderr)
        return 2
    return 0


def write_json(file: Path, values: Any) -> None:
    """Write indented JSON."""
    file.write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def copy_texts(source: Path, folder: Path) -> None:
    """Copy a model's tokenizer and settings, except config.json and the index of its weights."""
    for file in text_files(source):
        if "safetensors" not in file.name and file.name != "config.json":
            copy_regular(file, folder / file.name)


def write_weights(file: Path, planned: Sequence[StoredTensor], parts: Iterable[tuple[str, memoryview]]) -> None:
    """Write the planned tensors into a safetensors file as their parts are made, and print the fraction written."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in planned:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (at, at + tensor.size),
        }
        at += tensor.size
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with file.open("wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        written, made = 0, iter(parts)
        for tensor in planned:
            missing = tensor.size
            while missing > 0:
                name, part = next(made)
                assert name == tensor.name and part.nbytes <= missing, name
                stream.write(part)
                missing -= part.nbytes
                written += part.nbytes
                share = 1.0 if written == at else min(written / at, 0.9999)  # print 1.0000 only at the end
                print(f"{share:.4f}", flush=True)
