"""Tests of the text layer: real tokenizers of every supported kind, no model."""
