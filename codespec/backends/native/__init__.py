"""Models that the native kernels compute without torch, from a GGUF file or a folder with float weights."""
