"""Convert a model into a folder of int8 weights: `python -m codespec.models.int8.convert SOURCE FOLDER SHA256`.

SOURCE is a GGUF file or a folder in the Hugging Face layout, read weight by weight. FOLDER receives the same
configuration and tokenizer, and weights that only `codespec.models.int8.network` reads. Runs as a separate process and
prints its progress, one fraction from 0 to 1 per line. On failure, prints one sentence to stderr and exits with code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from math import prod
from pathlib import Path
from typing import Any

import torch

from codespec.models.converter import convert_to_exit_code, copy_texts, write_json
from codespec.models.gguf.convert import check_kind, write_texts
from codespec.models.gguf.header import read_header
from codespec.models.gguf.plan import make_plan
from codespec.models.gguf.weights import check_whole
from codespec.models.int8.check import check_block, describe
from codespec.models.int8.kernels import choose_kernel
from codespec.models.int8.recipe import EMBEDDING, Sizes, check_names, convert_tensors, plan_tensors
from codespec.models.int8.source import FloatWeights, FolderWeights, GgufWeights
from codespec.models.memory_plan import demand_memory
from codespec.models.stored import write_tensors
from codespec.store.conversion_cache import BASE_FILE, FORMAT, SOURCE, base_of, hash_once
from codespec.store.conversions import INT8_RECIPE
from codespec.store.disk import check_disk
from codespec.store.model_config import check_claims
from codespec.store.weights import read_weights, weight_files
from codespec.text.control_tokens import read_json


def convert(source: Path, folder: Path, sha256: str) -> None:
    """Write the converted model into `folder`, which must exist. Raise ModelError if it can't be converted."""
    with ExitStack() as stack, torch.inference_mode():
        weights: FloatWeights
        if source.is_dir():
            weights, config = _open_folder(source, folder, stack)
        else:
            weights, config = _open_gguf(source, folder, sha256, stack)
        sizes = Sizes.of(config)
        check_names(weights, sizes)
        planned = plan_tensors(weights, sizes)
        needed = {name: prod(shape) * form.itemsize for name, form, shape in planned}
        check_disk(folder, sum(needed.values()), "The converted model")
        demand_memory(source.name, sum(needed.values()) - needed[EMBEDDING])  # else it could not be loaded either
        choice = choose_kernel()  # on a 7-bit processor, round once now instead of again at load
        with closing(
            convert_tensors(weights, sizes, choice.most)
        ) as tensors:  # stop its threads before `stack` closes the file that they read
            write_tensors(folder / "model.safetensors", planned, tensors, "use dtype bfloat16")
    write_json(folder / "config.json", config)  # transformers reads it in `describe`
    plan = describe(folder, weights.shapes, choice.most)
    plan.write(config)
    write_json(folder / "config.json", config)
    check_block(folder, plan, choice)


def _open_gguf(file: Path, folder: Path, sha256: str, stack: ExitStack) -> tuple[FloatWeights, dict[str, Any]]:
    header = read_header(file)
    check_kind(header)
    check_whole(header)  # first: ensures that no tensor is larger than the file
    plan = make_plan(header)
    config = write_texts(header, plan, folder, sha256)
    config[SOURCE] |= {"recipe": INT8_RECIPE, BASE_FILE: hash_once(file)}
    return GgufWeights(header, plan, stack), config


def _open_folder(source: Path, folder: Path, stack: ExitStack) -> tuple[FloatWeights, dict[str, Any]]:
    check_claims(source)
    config = read_json(source / "config.json")
    copy_texts(source, folder)
    stored = read_weights(source, tied=bool(config.get("tie_word_embeddings"))).dtype
    earlier = config.get(SOURCE)
    known = earlier if isinstance(earlier, dict) else {"quantization": stored}
    config[SOURCE] = {**known, **base_of(source, weight_files(source)), "format": FORMAT, "recipe": INT8_RECIPE}
    return FolderWeights(source, stack), config


def main(arguments: Sequence[str]) -> int:
    """Convert SOURCE FOLDER SHA256. Return the exit code: 0, or 2 after printing one sentence to stderr."""
    torch.set_num_threads(1)  # layers are converted in parallel
    return convert_to_exit_code(convert, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
