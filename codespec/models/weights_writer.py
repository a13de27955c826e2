"""Write the weights of a converted model into a safetensors file, some rows at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from codespec.errors import ModelError

_FORMATS = {torch.int8: "I8", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}


def write_tensors(
    file: Path,
    planned: Sequence[tuple[str, torch.dtype, tuple[int, ...]]],
    tensors: Iterable[tuple[str, Tensor]],
    mend: str,
) -> None:
    """Write the planned tensors into a safetensors file as they are made, and print the fraction written.

    Raise ModelError, with `mend`, for a value that is not finite.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, form, shape in planned:
        end = at + prod(shape) * form.itemsize
        entries[name] = {"dtype": _FORMATS[form], "shape": shape, "data_offsets": (at, end)}
        at = end
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with file.open("wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        written, parts = 0, iter(tensors)
        for name, form, shape in planned:
            missing = prod(shape)
            while missing > 0:
                made, part = next(parts)
                assert made == name and part.dtype == form and part.numel() <= missing, name
                if form != torch.int8 and not torch.isfinite(part).all():
                    raise ModelError(f"The weight {name} is beyond the range of its format", mend)
                write_part(stream, part)
                missing -= part.numel()
                written += part.nbytes
                share = 1.0 if written == at else min(written / at, 0.9999)  # print 1.0000 only at the end
                print(f"{share:.4f}", flush=True)


def write_part(stream: BinaryIO, part: Tensor) -> None:
    """Append a piece of a tensor."""
    stream.write(part.contiguous().flatten().view(torch.uint8).numpy().data)
