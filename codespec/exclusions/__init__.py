"""Rules that exclude ignored files, secret files and secret lines from completion and from prompts."""
