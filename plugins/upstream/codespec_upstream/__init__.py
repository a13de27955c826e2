"""Completions from another server: an OpenAI-compatible server generates the text, the daemon does everything else.

No model is loaded, and neither torch nor transformers is needed.
"""
