"""Completions by another server: an OpenAI-compatible server generates the text, and the daemon does everything else.

The daemon then loads no model, and needs neither torch nor transformers.
"""
