"""`codespec bench decode`: how fast. codespec, transformers and llama.cpp decode the same prompts in turn."""
