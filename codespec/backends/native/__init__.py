"""Models from GGUF files or folders with float weights, which the native kernels compute without torch."""
