"""Tests of the text layer with real tokenizers of every supported kind, without models."""
