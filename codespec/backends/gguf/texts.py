"""Write a GGUF file's configuration and tokenizer as a folder without weights: `python -m codespec.backends.gguf.texts
FILE FOLDER SHA256`.

Readers of a model's facts need no more, and it takes a second. `store.conversions` runs this in a separate process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path

from codespec.backends.gguf.convert import check_kind, write_texts
from codespec.backends.gguf.header import read_header
from codespec.backends.gguf.plan import make_plan
from codespec.backends.torch.converter import convert_to_exit_code, write_json
from codespec.store.conversion_cache import SOURCE


def write_folder(file: Path, folder: Path, sha256: str) -> None:
    """Write the texts to an existing folder. Raise ModelError if the file can't be read."""
    header = read_header(file)
    check_kind(header)
    config = write_texts(header, make_plan(header), folder, sha256)
    config[SOURCE]["parameters"] = sum(prod(tensor.shape) for tensor in header.tensors.values())
    write_json(folder / "config.json", config)


def main(arguments: Sequence[str]) -> int:
    """Convert FILE FOLDER SHA256. Return the exit code: 0, or 2 after printing one sentence to stderr."""
    return convert_to_exit_code(write_folder, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
