"""CPU kernels for weights in the formats of a GGUF file: matrix products, and whole steps of Llama-shaped models.

A row has the same bits on every processor and with any number of rows and threads. `build` compiles the C sources in
`src`, and `library` makes the compiled library available in Python.
"""

__version__ = "0.1.0"
