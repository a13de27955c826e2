"""Run models on a CUDA device: captured graphs, attention over slots, Triton kernels.

The `*_kernels` modules hold device code and its launchers. They import Triton, so import them only on a GPU or in
Triton's interpreter.
"""
