"""Tests of codespec/models/native: what a GGUF file computes in the native kernels."""
