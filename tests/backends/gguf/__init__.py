"""Tests of codespec/backends/gguf: reading, refusing and converting GGUF files."""
