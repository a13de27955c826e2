"""Convert a folder of quantized weights into a plain one: `python -m codespec.models.dequantize.convert SOURCE FOLDER
SHA256`.

`store.conversions` runs this in a separate process and caches the result. It reads one matrix at a time, so a model of
any size needs the memory of its largest matrix. Weights are written in the model's own format, usually bfloat16, which
represents mxfp4 exactly and rounds the others as every other engine does. Prints its progress, one fraction from 0 to 1
per line. On failure, prints one sentence to stderr and exits with code 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError

from codespec.errors import ModelError
from codespec.models.converter import copy_texts, run_converter, write_json
from codespec.models.dequantize.formats import Quantized
from codespec.models.dequantize.schemes import plain_weights
from codespec.models.stored import write_tensors
from codespec.store.conversion_cache import FORMAT, SOURCE, base_of
from codespec.store.conversions import quantization_of
from codespec.store.disk import check_disk
from codespec.store.weights import weight_files
from codespec.text.control_tokens import read_json

_FORMS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
AGAIN = "fetch or export the model again"


def convert(source: Path, folder: Path, sha256: str) -> None:
    """Write the plain model into `folder`, which must exist. Raise ModelError if it can't be converted."""
    config = read_json(source / "config.json")
    quantization = quantization_of(config)
    form = _FORMS.get(str(config.get("dtype") or config.get("torch_dtype")), torch.bfloat16)
    try:
        with ExitStack() as stack, torch.inference_mode():
            weights = plain_weights(Quantized(source, stack), quantization)
            check_disk(folder, sum(prod(weight.shape) for weight in weights) * form.itemsize, "The converted model")
            planned = [(weight.name, form, weight.shape) for weight in weights]
            tensors = ((weight.name, piece.to(form)) for weight in weights for piece in weight.pieces())
            write_tensors(folder / "model.safetensors", planned, tensors, AGAIN)
    except SafetensorError as error:
        raise ModelError(f"The weights of {source} can't be read ({error})", AGAIN) from error
    copy_texts(source, folder)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            part.pop("quantization_config", None)
    label = str(quantization.get("format") or quantization.get("quant_method") or "")  # "gptq", "int-quantized"
    made = {"format": FORMAT, "sha256": sha256, "quantization": label}
    config[SOURCE] = made | base_of(source, weight_files(source))
    write_json(folder / "config.json", config)


def main(arguments: Sequence[str]) -> int:
    """Convert SOURCE FOLDER SHA256. Return the exit code: 0, or 2 after printing one sentence to stderr."""
    return run_converter(convert, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
