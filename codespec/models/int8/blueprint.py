"""Read and write the network description in a converted folder's config.json: sizes, windows, rotary frequencies.

The values are taken from transformers' own layers at conversion time, so that startup need not import transformers,
which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from codespec.errors import ModelError
from codespec.store.conversions import INT8_RECIPE, int8_recipe

KEY = "codespec_int8"
MOST = 1 << 48  # upper bound for valid sizes


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A Llama-shaped network.

    parameters    parameter count of the model before conversion
    max_length    the longest text in tokens
    scaling       the factor of the attention scores
    rotary_scale  the factor of the rotary embedding's cosines and sines
    most          the largest int8 weight, by magnitude
    windows       each layer's attention window in tokens; 0 for none
    frequencies   the rotary embedding's inverse frequencies [head_size / 2]
    """

    architecture: str
    parameters: int
    vocabulary: int
    max_length: int
    hidden_size: int
    inner_size: int
    heads: int
    kv_heads: int
    head_size: int
    epsilon: float
    scaling: float
    rotary_scale: float
    most: int
    windows: tuple[int, ...]
    frequencies: tuple[float, ...]

    @property
    def layers(self) -> int:
        """The number of layers."""
        return len(self.windows)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Blueprint:
        """Parse the output of `write` from a config.json. Raise ModelError if it is missing or invalid."""
        found = config.get(KEY)
        values = dict(found) if isinstance(found, dict) else {}
        lists = {name: values.get(name) for name in ("windows", "frequencies")}
        sound = values.keys() == cls.__dataclass_fields__.keys() and all(isinstance(v, list) for v in lists.values())
        if sound:
            plan = cls(**values | {name: tuple(listed or ()) for name, listed in lists.items()})
            sound = plan._is_sound()
        if not sound:
            raise ModelError(
                "config.json does not describe its int8 weights",
                "remove its folder; the next start converts the model again",
            )
        return plan

    def write(self, config: dict[str, Any]) -> None:
        """Add this description to the content of a config.json."""
        config[KEY] = asdict(self)

    def _is_sound(self) -> bool:
        sizes = (self.parameters, self.vocabulary, self.max_length, self.hidden_size, self.inner_size, self.heads)
        positive = (*sizes, self.kv_heads, self.head_size, self.most)
        reals = (self.epsilon, self.scaling, self.rotary_scale, *self.frequencies)
        return (
            all(type(size) is int and 0 < size < MOST for size in positive)
            and all(type(window) is int and 0 <= window < MOST for window in self.windows)
            and all(type(real) in (int, float) and abs(real) < MOST for real in reals)
            and isinstance(self.architecture, str)
            and 2 * len(self.frequencies) == self.head_size
            and len(self.windows) > 0
            and self.heads % self.kv_heads == 0
        )


def is_converted(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json belongs to a folder that `models.int8.convert` wrote with the current recipe."""
    return int8_recipe(config) == INT8_RECIPE
