"""Read the architecture settings of a GGUF file, and refuse unknown ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from codespec.errors import ModelError
from codespec.models.gguf.header import Header, broken

Json = dict[str, Any]

# Settings without effect on the arithmetic: sizes that the tensors also give, and metadata.
_NOTES = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "rope.scaling.original_context_length")


class Settings:
    """The architecture settings of a file. Records which of them have been read."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.name = header.text("general.architecture")
        self._seen = {f"{self.name}.{note}" for note in _NOTES}

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
        """Return one setting. Raise ModelError if it is negative or of another type, or missing without a default."""
        full = f"{self.name}.{key}"
        self._seen.add(full)
        value = self.header.settings.get(full, default)
        if not isinstance(value, kinds) or isinstance(value, bool) or (isinstance(value, int | float) and value < 0):
            raise broken(self.header.file, f"{full} is missing or has the wrong type")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """Return an integer setting."""
        return int(self.take(key, int, default))

    def real(self, key: str, default: float | None = None) -> float:
        """Return a number setting, rounded to the shortest decimal of its 32-bit value."""
        return float(str(np.float32(self.take(key, (float, int), default))))

    def has(self, key: str) -> bool:
        """Return whether the file has this setting."""
        return f"{self.name}.{key}" in self.header.settings

    def same(self, key: str, default: int, *, zeros: bool = False) -> int:
        """Return an integer setting that may be a list with one entry a layer, all equal except for allowed zeros."""
        value = self.take(key, (int, list), default)
        several = set(value) - ({0} if zeros else set()) if isinstance(value, list) else {value}
        if len(several) != 1 or not all(isinstance(one, int) and one >= 0 for one in several):
            raise unreadable(self.header, f"its setting {self.name}.{key}, which differs from layer to layer,")
        return int(several.pop())

    def flags(self, key: str, period: int, layers: int) -> list[bool]:
        """Return a boolean for each layer: the file's list, or all but every n-th, n being its number or `period`."""
        value = self.take(key, (int, list), period)
        if isinstance(value, list):
            if len(value) != layers:
                raise broken(self.header.file, f"{self.name}.{key} does not name {layers} layers")
            return [bool(one) for one in value]
        return [number % value < value - 1 if value else False for number in range(layers)]

    def ignore(self, *keys: str) -> None:
        """Do not refuse these settings."""
        self._seen |= {f"{self.name}.{key}" for key in keys}

    def refuse_rest(self) -> None:
        """Raise ModelError if the file has a setting that was not read and would be ignored silently."""
        prefix = f"{self.name}."
        for key in self.header.settings:
            if key.startswith(prefix) and key not in self._seen:
                raise unreadable(self.header, f"its setting {key}")


def unreadable(header: Header, what: str) -> ModelError:
    """Return the ModelError for an intact file with an unsupported feature `what`."""
    return ModelError(
        f"{header.file} can't be converted without a change of the model, because {what} is not known here",
        "take the model's folder in the Hugging Face layout",
    )
