"""What runs models on a CUDA device: steps in captured graphs, attention over slots, Triton kernels.

The `*_kernels` modules hold device code and its launchers. They import Triton, so only code that runs on a GPU, or in
Triton's interpreter, imports them.
"""
