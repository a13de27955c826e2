"""Who is measured by `codespec bench decode`: codespec itself, transformers, llama.cpp, behind one small interface."""
