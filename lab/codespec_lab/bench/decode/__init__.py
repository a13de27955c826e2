"""`codespec bench decode`: decoding speed of codespec, transformers and llama.cpp on the same prompts."""
