"""Tests of codespec/backends: the seam, the cache, exact arithmetic and the loader."""
