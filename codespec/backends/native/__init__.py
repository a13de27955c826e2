"""Models computed by the native kernels, straight from a GGUF file. No torch."""
