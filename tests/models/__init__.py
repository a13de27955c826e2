"""Tests of codespec/models: the seam, the cache, exact arithmetic and the loader."""
