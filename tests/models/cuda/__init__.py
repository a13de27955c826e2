"""Tests of codespec/models/cuda: buckets, graphs, slot attention and kernels, as far as a CPU can show them."""
