"""How many parameters a model folder holds and in which number format, from the headers of its safetensors files.

Knows the safetensors layout: eight bytes of length, a JSON header, the data. Reads no weights and loads no torch.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from codespec.errors import ModelError
from codespec.text.control_tokens import read_json

_MOST_HEADER = 100_000_000  # bytes; the format's own limit
# What old checkpoints carry along and no layer learns: rotary frequencies and causal masks.
_BUFFER = re.compile(r"(^|\.)(inv_freq|masked_bias|(attn|attention)\.bias)$")
_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a header."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_buffer(self) -> bool:
        """Whether it is a stored constant; a bias of one dimension is none, whatever its name."""
        return _BUFFER.search(self.name) is not None and (len(self.shape) > 1 or not self.name.endswith(".bias"))


@dataclass(frozen=True, slots=True)
class Weights:
    """A folder's parameters, tied ones counted once, and the format most of them are stored in ("BF16")."""

    parameters: int
    dtype: str


def read_weights(folder: Path, *, tied: bool) -> Weights:
    """Counts a folder's parameters; ModelError for missing, truncated or corrupt files.

    `tied` says that the output layer is the embedding, so that a second copy in the file is no parameter.
    """
    tensors = [tensor for file in weight_files(folder) for tensor in read_header(file) if not tensor.is_buffer]
    if tied and any(tensor.name.endswith(_EMBEDDINGS) for tensor in tensors):
        tensors = [tensor for tensor in tensors if not tensor.name.endswith(_HEADS)]
    by_dtype: Counter[str] = Counter()
    for tensor in tensors:
        by_dtype[tensor.dtype] += math.prod(tensor.shape)
    if not by_dtype.total():
        raise ModelError(f"The weights of {folder} are empty: fetch or export the model again.")
    return Weights(by_dtype.total(), by_dtype.most_common(1)[0][0])


def weight_files(folder: Path) -> list[Path]:
    """The files transformers would load: what the index names, else model.safetensors, else all there are."""
    index = read_json(folder / "model.safetensors.index.json").get("weight_map")
    if isinstance(index, dict) and index:
        return [folder / name for name in sorted(set(map(str, index.values())))]
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has no *.safetensors weights: convert the model (pickled weights are not read).")
    return files


def read_header(file: Path) -> list[Tensor]:
    """The tensors of one file; ModelError unless the file is exactly as long as its header says."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, _MOST_HEADER)))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = [Tensor(n, str(e["dtype"]), tuple(map(int, e["shape"]))) for n, e in entries.items()]
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except OSError as error:
        raise ModelError(f"{file} can't be read ({error.strerror}): fetch or export the model again.") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelError(f"{file} is truncated or corrupt: fetch or export the model again.") from error
    if file.stat().st_size != 8 + length + end:
        raise ModelError(f"{file} is truncated or corrupt: fetch or export the model again.")
    return tensors
