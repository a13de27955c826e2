"""Models on a CUDA device: captured graphs and Triton kernels.

The `*_kernels` modules import Triton, so import them only on a machine with a GPU or in Triton's interpreter.
"""
