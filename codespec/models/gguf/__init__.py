"""GGUF files: read, checked and converted once into a folder in the Hugging Face layout, without torch."""
