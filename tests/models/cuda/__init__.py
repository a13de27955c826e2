"""Tests of codespec/models/cuda that run on a CPU: buckets, graphs, slot attention and kernels."""
