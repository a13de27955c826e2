"""`codespec bench proposers`: compare the proposers on the same prompts."""
