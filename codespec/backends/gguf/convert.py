"""Convert a GGUF file into a folder in the Hugging Face layout.

`store.conversions` runs `python -m codespec.backends.gguf.convert FILE FOLDER SHA256` and caches the folder. With
`--texts` before FILE, no weights are written. The GGUF reader of transformers is not used, because it ignores unknown
features (rotary scalings, biases, digit splitting) and is ten times slower. After a failure, the exit code is 2, and
stderr contains one sentence with the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from codespec.backends.gguf.header import Header, read_header
from codespec.backends.gguf.settings import Json
from codespec.backends.gguf.tokenizer import read_vocabulary
from codespec.backends.gguf.weights import check_whole, make_plan, planned_tensors, quantization, weight_parts
from codespec.errors import CodespecError, ModelError
from codespec.store.conversions import FORMAT, SOURCE, TEXTS_ONLY
from codespec.store.disk import check_disk
from codespec.store.model_folder import StoredTensor


def convert_to_exit_code(convert: Callable[..., None], arguments: Sequence[str]) -> int:
    """Call `convert` with the arguments SOURCE… FOLDER SHA256, and return the exit code for the process."""
    *sources, folder, digest = arguments
    source = sources[-1]
    try:
        convert(*map(Path, sources), Path(folder), digest)
    except CodespecError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        why = error.strerror or error
        print(f"{source} can't be converted into {folder} ({why}): free some disk space.", file=sys.stderr)
        return 2
    except MemoryError:
        print(f"There is not enough memory to convert {source}: close other programs.", file=sys.stderr)
        return 2
    return 0


def write_json(file: Path, values: Any) -> None:
    """Write indented JSON."""
    file.write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def write_weights(file: Path, planned: Sequence[StoredTensor], parts: Iterable[tuple[str, memoryview]]) -> None:
    """Write the planned tensors to a safetensors file from the blocks in `parts`, and print the fraction written."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in planned:
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (at, at + tensor.size)}
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


# Files that are not whole models: the content and the fix, by general.type.
_OTHERS = {
    "adapter": ("an adapter", "merge the adapter into its base model, and use the merged model"),
    "vocab": ("only a vocabulary", "use the file that contains the weights"),
    "mmproj": ("the image part of a model", "use the file that contains the language model"),
    "imatrix": ("only statistics for quantizing", "use the file that contains the language model"),
}


def convert(file: Path, folder: Path, sha256: str) -> None:
    """Write the converted model to an existing folder. Raise ModelError if the file can't be converted."""
    header = read_header(file)
    check_kind(header)
    check_whole(header)  # before anything is allocated for a tensor
    config, weights = make_plan(header)
    planned = planned_tensors(header, weights)
    check_disk(folder, sum(tensor.size for tensor in planned), "The converted model")
    write_json(folder / "config.json", _write_texts(header, config, folder, sha256))
    write_weights(folder / "model.safetensors", planned, weight_parts(header, weights))


def _write_texts(header: Header, config: Json, folder: Path, sha256: str) -> Json:
    """Write generation_config.json and the tokenizer files, and return the full content of config.json."""
    vocabulary = read_vocabulary(header)
    source = {
        "format": FORMAT,
        "file": header.file.name,
        "sha256": sha256,
        "quantization": quantization(header),
        "architecture": header.get("general.architecture", str, ""),
    }
    ends = list(vocabulary.eos_ids) or None
    tokens = {"bos_token_id": vocabulary.bos_id, "eos_token_id": ends, "pad_token_id": vocabulary.pad_id}
    write_json(folder / "generation_config.json", {key: value for key, value in tokens.items() if value is not None})
    text = json.dumps(vocabulary.document, ensure_ascii=False)  # indenting would take two seconds
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    settings = {**vocabulary.settings, "model_max_length": config["max_position_embeddings"]}
    write_json(folder / "tokenizer_config.json", settings)
    return {**config, **tokens, SOURCE: source}


def check_kind(header: Header) -> None:
    """Raise ModelError if the GGUF file does not contain a whole model."""
    parts = header.settings.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise ModelError(
            f"{header.file} is one of {parts} parts of a model",
            "join the parts with `llama-gguf-split --merge FIRST_PART WHOLE.gguf`, and use WHOLE.gguf",
        )
    kind = "mmproj" if header.get("general.architecture", str, "") == "clip" else header.get("general.type", str, "")
    if kind in _OTHERS or not header.tensors:
        content, fix = _OTHERS.get(kind, _OTHERS["vocab"])
        raise ModelError(f"{header.file} contains {content}, not a whole model", fix)


def write_folder(file: Path, folder: Path, sha256: str) -> None:
    """Write a converted model without its weights to an existing folder. Raise ModelError for a damaged file."""
    header = read_header(file)
    check_kind(header)
    config = _write_texts(header, make_plan(header)[0], folder, sha256)
    config[SOURCE]["parameters"] = sum(prod(tensor.shape) for tensor in header.tensors.values())
    write_json(folder / "config.json", config)


def main(arguments: Sequence[str]) -> int:
    """Run the conversion command with these arguments, and return its exit code."""
    if arguments[0] == TEXTS_ONLY:
        return convert_to_exit_code(write_folder, arguments[1:])
    return convert_to_exit_code(convert, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
