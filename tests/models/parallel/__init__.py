"""Tests of codespec/models/parallel: a group of processes that shares one model."""
