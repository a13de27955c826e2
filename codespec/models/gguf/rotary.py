"""Map the rotary settings and factors of a GGUF file to the `rope_parameters` of config.json."""

from __future__ import annotations

from math import pi

import numpy as np
from numpy.typing import NDArray

from codespec.models.gguf.header import Header, broken
from codespec.models.gguf.settings import Json, Settings, unreadable

FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_YARN = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}


def read_rotary(settings: Settings, turned: int) -> Json:
    """Return the rope_parameters for heads of which `turned` numbers turn."""
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
            raise unreadable(settings.header, "a rotary scaling beside factors of its own")
        rotary |= _llama3(settings.header, rotary["rope_theta"], turned)
    return rotary


def read_longrope(settings: Settings, turned: int) -> Json:
    """Return Phi-3's two sets of factors, for texts up to the original context and for longer ones; {} if none."""
    header = settings.header
    if not {LONG, SHORT} <= header.tensors.keys():
        return {}
    factors = {"long_factor": LONG, "short_factor": SHORT}
    read = {ours: [float(str(one)) for one in read_factors(header, name)] for ours, name in factors.items()}
    if any(len(one) != turned // 2 for one in read.values()):
        raise unreadable(header, "its rotary factors")
    settings.ignore("rope.scaling.attn_factor", "rope.scaling.type")  # follows from the two contexts
    return {"rope_type": "longrope", **read}


def _llama3(header: Header, base: float, head: int) -> Json:
    """Return the published Llama 3 scaling settings that yield the file's factors (one per frequency)."""
    stored = read_factors(header, FACTORS)
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


def read_factors(header: Header, name: str) -> NDArray[np.float32]:
    """Read factors of the rotary frequencies. Raise ModelError if they are not 32-bit floats."""
    tensor = header.tensors[name]
    if tensor.kind != 0 or len(tensor.shape) != 1 or tensor.start + 4 * tensor.shape[0] > header.size:
        raise broken(header.file, "its rotary factors can't be read")
    return np.fromfile(header.file, dtype="<f4", count=tensor.shape[0], offset=tensor.start)
