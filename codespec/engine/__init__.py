"""The engine: requests in, completions out, one round at a time."""
