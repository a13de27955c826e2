"""The contestants of `codespec bench decode`: codespec itself, transformers and llama.cpp."""
