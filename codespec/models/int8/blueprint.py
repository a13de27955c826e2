"""The network of a converted folder, as its config.json describes it: sizes, windows and rotary frequencies, taken from
transformers' own layers when the folder was written. So a start does not import transformers, which takes seconds.
Knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from codespec.errors import ModelError
from codespec.model_folders.conversions import INT8_RECIPE, int8_recipe

KEY = "codespec_int8"
MOST = 1 << 48  # a larger number is not a size


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A Llama-shaped network.

    parameters    how many the model had before it was converted
    max_length    the longest text in tokens
    scaling       the factor of attention's scores
    rotary_scale  the factor of the rotary embedding's cosines and sines
    most          the largest int8 weight, by magnitude
    windows       each layer's attention window in tokens; 0 for none
    frequencies   the rotary embedding's [head_size / 2]
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
        """Reads a config.json. Raises ModelError if it does not hold what `write` put there."""
        found = config.get(KEY)
        values = dict(found) if isinstance(found, dict) else {}
        lists = {name: values.get(name) for name in ("windows", "frequencies")}
        sound = values.keys() == cls.__dataclass_fields__.keys() and all(isinstance(v, list) for v in lists.values())
        if sound:
            plan = cls(**values | {name: tuple(listed or ()) for name, listed in lists.items()})
            sound = plan._is_sound()
        if not sound:
            raise ModelError(
                "config.json does not describe its int8 weights: remove its folder; the next start converts the model "
                "again."
            )
        return plan

    def write(self, config: dict[str, Any]) -> None:
        """Adds this to the content of a config.json."""
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
    """Whether a config.json belongs to a folder that `models.int8.convert` wrote by the current recipe."""
    return int8_recipe(config) == INT8_RECIPE
