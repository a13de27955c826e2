"""Tests of codespec/backends/native: what a GGUF file computes in the native kernels."""
