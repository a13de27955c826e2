"""`codespec bench decode`: how fast. codespec, transformers, llama.cpp and OpenVINO decode the same prompts in turn."""
