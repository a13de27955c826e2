"""`codespec bench policy`: how far to guess. Every draft-length policy is replayed on the same recorded completions."""
