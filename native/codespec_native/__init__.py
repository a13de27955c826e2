"""Kernels for weights as a GGUF file stores them: products, and a whole step of a Llama-shaped model, on CPUs.

A row has the same bits on every processor, for any number of rows and threads. The C text is in `src`; `build`
compiles it and `library` declares it to Python.
"""

__version__ = "0.1.0"
