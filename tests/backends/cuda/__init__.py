"""Tests of codespec/backends/torch/cuda that run on a CPU: buckets, graphs, slot attention and kernels."""
