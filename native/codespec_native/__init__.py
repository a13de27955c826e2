"""CPU kernels for weights in GGUF formats: matrix products, and forward passes of models with a Llama architecture.

A row's result has the same bits on every processor and with any number of rows and threads. `build` compiles the C
sources in `src`, and `library` makes the compiled library available in Python.
"""

__version__ = "0.1.0"
