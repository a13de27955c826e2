"""Text from another server: any OpenAI-compatible completions server writes, the daemon does everything else.

Loads no model and needs neither torch nor transformers.
"""
