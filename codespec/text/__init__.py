"""Bytes ↔ ids, retokenization, token healing, FIM prompts, streaming text. Knows no model and no torch."""
