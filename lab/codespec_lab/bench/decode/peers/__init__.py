"""The contestants of `codespec bench decode`: codespec itself, transformers, llama.cpp and OpenVINO GenAI."""
