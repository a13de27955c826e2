"""How much memory a model's weights and caches take, by its files alone. Knows shapes and settings; loads nothing.

An estimate for people: what a step needs beside them, and padding, are not in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from codespec.config import EngineConfig
from codespec.pair.architecture import text_config
from codespec.pair.facts import ModelFacts

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
CONTEXT = 2048  # tokens, where the settings name none
USUAL_BATCH = 8  # requests at once, where that is measured
IDLE_FACTOR, IDLE_BYTES = 4, 256 * 2**20  # cache_mb = 0: slots for so many times max_batch, within so much


def weight_size(model: ModelFacts, dtype: str) -> int:
    """Bytes of the weights in a number format."""
    return model.weights.parameters * ITEM_BYTES[dtype]


def cache_size(config: EngineConfig, sides: Sequence[tuple[ModelFacts, str]]) -> int:
    """Bytes of the caches of models in their number formats."""
    if config.cache_mb:
        return config.cache_mb * 2**20
    context, batch = config.context or CONTEXT, config.max_batch or USUAL_BATCH
    running = batch * sum(slot_size(model, dtype, context) for model, dtype in sides)
    return max(running, min(IDLE_FACTOR * running, IDLE_BYTES))


def slot_size(model: ModelFacts, dtype: str, context: int) -> int:
    """Bytes of one request's keys and values; 0 where config.json does not say its shape."""
    values = text_config(model.config)

    def number(*names: str) -> int:
        return next((values[name] for name in names if isinstance(values.get(name), int)), 0)

    layers, heads = number("num_hidden_layers", "n_layer"), number("num_attention_heads", "n_head")
    size = number("head_dim") or number("hidden_size", "n_embd") // max(1, heads)
    tokens = min(context, model.context or context)
    return 2 * layers * (number("num_key_value_heads") or heads) * size * tokens * ITEM_BYTES[dtype]
