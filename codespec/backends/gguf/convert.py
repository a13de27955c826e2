"""Convert a GGUF file into a folder in the Hugging Face layout: `python -m codespec.backends.gguf.convert FILE FOLDER
SHA256`.

`store.conversions` runs this in a separate process and caches the result. It loads neither torch nor
transformers, whose reader ignores unknown features (rotary scalings, biases, digit splitting) and takes ten times as
long. Every failure is one sentence on stderr, with exit code 2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from codespec.backends.gguf.header import Header, read_header
from codespec.backends.gguf.plan import Plan, make_plan
from codespec.backends.gguf.settings import Json
from codespec.backends.gguf.tokenizer import Vocabulary, read_vocabulary
from codespec.backends.gguf.weights import check_whole, planned_tensors, quantization, weight_parts
from codespec.backends.torch.converter import convert_to_exit_code, write_json, write_weights
from codespec.errors import ModelError
from codespec.store.conversion_cache import FORMAT, SOURCE
from codespec.store.disk import check_disk

# Files that are not whole models, by general.type: what they contain, and how to proceed.
_OTHERS = {
    "adapter": ("an adapter", "merge it into its model, and convert that"),
    "vocab": ("only a vocabulary", "use the file with the weights"),
    "mmproj": ("the image part of a model", "use the model's own file"),
    "imatrix": ("only statistics for quantizing", "use the model's own file"),
}


def convert(file: Path, folder: Path, sha256: str) -> None:
    """Write the converted model to an existing folder. Raise ModelError if the file can't be converted."""
    header = read_header(file)
    check_kind(header)
    check_whole(header)  # first: ensures that no tensor is larger than the file
    plan = make_plan(header)
    planned = planned_tensors(header, plan.weights)
    check_disk(folder, sum(tensor.size for tensor in planned), "The converted model")
    write_json(folder / "config.json", write_texts(header, plan, folder, sha256))
    write_weights(folder / "model.safetensors", planned, weight_parts(header, plan.weights))


def write_texts(header: Header, plan: Plan, folder: Path, sha256: str) -> Json:
    """Write generation_config.json and the tokenizer files, and return the content of config.json."""
    vocabulary = read_vocabulary(header)
    source = {
        "format": FORMAT,
        "file": header.file.name,
        "sha256": sha256,
        "quantization": quantization(header),
        "architecture": header.text("general.architecture"),
    }
    ends = list(vocabulary.eos_ids) or None
    tokens = {"bos_token_id": vocabulary.bos_id, "eos_token_id": ends, "pad_token_id": vocabulary.pad_id}
    write_json(folder / "generation_config.json", {key: value for key, value in tokens.items() if value is not None})
    _write_tokenizer(folder, vocabulary, plan.config["max_position_embeddings"])
    return {**plan.config, **tokens, SOURCE: source}


def check_kind(header: Header) -> None:
    """Raise ModelError if the file is not a whole model."""
    parts = header.settings.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise ModelError(
            f"{header.file} is one of {parts} parts", "join them with `llama-gguf-split --merge FIRST_PART WHOLE.gguf`"
        )
    kind = "mmproj" if header.text("general.architecture") == "clip" else header.text("general.type")
    if kind in _OTHERS or not header.tensors:
        content, fix = _OTHERS.get(kind, _OTHERS["vocab"])
        raise ModelError(f"{header.file} contains {content}, not a whole model", fix)


def _write_tokenizer(folder: Path, vocabulary: Vocabulary, length: int) -> None:
    text = json.dumps(vocabulary.document, ensure_ascii=False)  # indenting would take two seconds
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {**vocabulary.settings, "model_max_length": length})


def main(arguments: Sequence[str]) -> int:
    """Convert FILE FOLDER SHA256. Return the exit code: 0, or 2 after printing one sentence to stderr."""
    return convert_to_exit_code(convert, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
