"""Tests of codespec/models/parallel: a group of processes that holds one model."""
