"""Whether the sizes that a model's config.json claims are borne out by what its weight files hold: asked before
anything of that size is made.

Knows how configurations spell sizes, and the headers of the files; loads nothing. What is left, sizes that are each
there but multiply to more than the files hold, the loader compares (`models.model_check`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from codespec.errors import ModelError
from codespec.pair.weights import Tensor, read_header, weight_files
from codespec.text.control_tokens import read_json

USUAL = 1 << 16  # sizes up to here harm nobody, whatever the files hold: windows, chunks, positions
_LAYERS = re.compile(r"(?:n|num)(?:_hidden)?_layers?|(?:num_)?(?:en|de)coder_layers")
_EXPERTS = re.compile(r"(?:\w+_)?experts")
_SIZE = re.compile(
    r"(?!\w*(?:chunk|context|ctx|length|param|position|sample|step|token|window))"  # nothing is made of that size
    r"(?:(?:n|num|d)_\w+|\w+_(?:sizes?|dims?|rank|heads|features|channels)|width|depth)"
)
_NUMBERED = re.compile(r"(?:^|(?<=\.))(\d+)(?=\.)")


def check_claims(folder: Path) -> list[Tensor]:
    """What the weight files hold; ModelError where they are broken or don't hold what config.json claims."""
    tensors = [tensor for file in weight_files(folder) for tensor in read_header(file)]
    numbered = _count_numbered(tensor.name for tensor in tensors)
    widest = max((size for tensor in tensors if tensor.count for size in tensor.shape), default=0)
    stacked = max((tensor.shape[0] for tensor in tensors if tensor.count and len(tensor.shape) > 2), default=0)
    for name, value in _numbers(read_json(folder / "config.json")):
        if _LAYERS.fullmatch(name):
            held, what = numbered, f"{numbered} layers"
        elif _EXPERTS.fullmatch(name):
            held, what = max(numbered, stacked), f"{max(numbered, stacked)} parts of a kind"
        elif _SIZE.fullmatch(name):
            held, what = max(widest, USUAL), f"nothing larger than {widest}"
        else:
            continue
        if value > held:
            raise not_held(folder, f"{name} = {value}", what)
    return tensors


def not_held(folder: Path, claim: str, held: str) -> ModelError:
    """The sentence for a claim that the weights don't bear out."""
    return ModelError(
        f"The configuration of {folder} claims {claim}, and its weights hold {held}: fetch or export the model again."
    )


def _count_numbered(names: Iterable[str]) -> int:
    """How many parts of one kind the weights have at most, as layers: `model.layers.7.mlp` is the eighth of a kind."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in names:
        for match in _NUMBERED.finditer(name):
            found[name[: match.start()]].add(match[1])
    return max((len(numbers) for numbers in found.values()), default=0)


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number by its own name, those of parts and of lists too."""
    for name, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _numbers(item)
            elif isinstance(item, int | float) and not isinstance(item, bool):
                yield name, item
