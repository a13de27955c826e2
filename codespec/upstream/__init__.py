"""Completions from another server: an OpenAI-compatible server generates the text, the daemon does everything else.

Loads no model and needs neither torch nor transformers.
"""
