"""The engine turns requests into completions, one round at a time."""
