"""Read GGUF files, check them, and convert them to folders in the Hugging Face layout, without torch."""
