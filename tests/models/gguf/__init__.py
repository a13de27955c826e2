"""Tests of codespec/models/gguf: reading, refusing and converting GGUF files."""
