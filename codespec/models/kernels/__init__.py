"""What runs on a GPU, written in Triton: device code only, launched by the `triton_…` modules beside this package.

A kernel knows addresses, blocks and the order of its sums; it knows no model. Nothing here is imported where Triton
may be missing.
"""
