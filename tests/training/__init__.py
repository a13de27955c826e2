"""Tests of `codespec train`."""
