"""Run models: the attention interface, the KV cache, the CPU path and the loader."""
