"""`codespec bench decode`: decoding speed of codespec, transformers, llama.cpp and OpenVINO on the same prompts."""
