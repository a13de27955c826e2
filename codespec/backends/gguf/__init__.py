"""Read, check and convert GGUF files into a folder in the Hugging Face layout, without torch."""
