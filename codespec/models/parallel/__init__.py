"""Tensor parallelism: the process group, its workers, and the split layers."""
