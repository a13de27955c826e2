"""Read the architecture settings of a GGUF file, including its rotary embedding, and refuse unknown settings."""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codespec.backends.gguf.header import Header, broken
from codespec.errors import ModelError

Json = dict[str, Any]

# Settings without effect on the arithmetic: sizes that the tensors also give, and metadata.
_NOTES = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "rope.scaling.original_context_length")

FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_YARN = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}


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

    def same(self, key: str, default: int) -> int:
        """Return an integer setting, or the common value of a list with one entry per layer."""
        value = self.take(key, (int, list), default)
        several = set(value) if isinstance(value, list) else {value}
        if len(several) != 1 or not all(isinstance(number, int) and number >= 0 for number in several):
            raise unreadable(self.header, f"its setting {self.name}.{key}, which differs from layer to layer")
        return int(several.pop())

    def flags(self, key: str, period: int, layers: int) -> list[bool]:
        """Return a boolean for each layer: the file's list, or False for every n-th layer.

        n is the file's number, or `period` if it has none.
        """
        value = self.take(key, (int, list), period)
        if isinstance(value, list):
            if len(value) != layers:
                raise broken(self.header.file, f"{self.name}.{key} does not name {layers} layers")
            return [bool(flag) for flag in value]
        return [number % value < value - 1 if value else False for number in range(layers)]

    def ignore(self, *keys: str) -> None:
        """Accept these settings without reading them."""
        self._seen |= {f"{self.name}.{key}" for key in keys}

    def refuse_rest(self) -> None:
        """Raise ModelError if the file has a setting that was not read, because it may change the model."""
        prefix = f"{self.name}."
        for key in self.header.settings:
            if key.startswith(prefix) and key not in self._seen:
                raise unreadable(self.header, f"its setting {key}")


def unreadable(header: Header, feature: str) -> ModelError:
    """Return the ModelError for an intact file with an unsupported feature."""
    return ModelError(
        f"{header.file} can't be converted without changing the model (unsupported: {feature})",
        "use the model's folder in the Hugging Face layout",
    )


def read_rotary(settings: Settings, rotated: int) -> Json:
    """Return the rope_parameters for heads with `rotated` rotated dimensions."""
    rotary: Json = {"rope_theta": settings.real("rope.freq_base", 10000.0), "rope_type": "default"}
    factor = settings.real("rope.scaling.factor", 0.0) or settings.real("rope.scale_linear", 0.0)
    kind = settings.take("rope.scaling.type", str, "linear")
    original = settings.header.whole(f"{settings.name}.rope.scaling.original_context_length")
    if factor not in (0.0, 1.0) and kind != "none":
        if kind not in ("linear", "yarn") or (kind == "yarn" and original is None):
            raise unreadable(settings.header, f"its rotary scaling {kind!r}")
        rotary |= {"rope_type": kind, "factor": factor}
        rotary |= {"original_max_position_embeddings": original} if kind == "yarn" else {}
        rotary |= {ours: settings.real(key) for key, ours in _YARN.items() if kind == "yarn" and settings.has(key)}
    if FACTORS in settings.header.tensors:
        if rotary["rope_type"] != "default":
            raise unreadable(settings.header, "a rotary scaling combined with rotary factors")
        rotary |= _llama3(settings.header, rotary["rope_theta"], rotated)
    return rotary


def read_longrope(settings: Settings, rotated: int) -> Json:
    """Return Phi-3's two sets of factors, for texts up to the original context and for longer ones; {} if none."""
    header = settings.header
    if not {LONG, SHORT} <= header.tensors.keys():
        return {}
    factors = {"long_factor": LONG, "short_factor": SHORT}
    read = {ours: [float(str(factor)) for factor in _read_factors(header, name)] for ours, name in factors.items()}
    if any(len(listed) != rotated // 2 for listed in read.values()):
        raise unreadable(header, "its rotary factors")
    settings.ignore("rope.scaling.attn_factor", "rope.scaling.type")  # transformers derives both from the two contexts
    return {"rope_type": "longrope", **read}


def _llama3(header: Header, base: float, head: int) -> Json:
    """Return the published Llama 3 scaling settings that yield the file's factors (one per frequency)."""
    stored = _read_factors(header, FACTORS)
    if stored.size != -(-head // 2):
        raise unreadable(header, "its rotary factors")
    for scale in (8.0, 32.0, 16.0, 4.0):
        values: Json = {"factor": scale, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        values["original_max_position_embeddings"] = 8192
        wanted = 2 * pi * base ** (np.arange(0, head, 2, dtype=np.float64) / head)  # wavelengths
        part = (8192 / wanted - 1.0) / (4.0 - 1.0)
        middle = 1 / ((1 - part) / scale + part)
        factors = np.where(wanted < 8192 / 4.0, 1.0, np.where(wanted > 8192 / 1.0, scale, middle))
        if factors.shape == stored.shape and np.allclose(factors, stored, rtol=1e-5):
            return {"rope_type": "llama3", **values}
    raise unreadable(header, "its rotary factors")


def _read_factors(header: Header, name: str) -> NDArray[np.float32]:
    """Read factors of the rotary frequencies. Raise ModelError if they are not 32-bit floats."""
    tensor = header.tensors[name]
    if tensor.kind != 0 or len(tensor.shape) != 1 or tensor.start + 4 * tensor.shape[0] > header.size:
        raise broken(header.file, "its rotary factors can't be read")
    return np.fromfile(header.file, dtype="<f4", count=tensor.shape[0], offset=tensor.start)
