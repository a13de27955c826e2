"""`codespec bench policy`: replay every draft-length policy on the same recorded completions."""
