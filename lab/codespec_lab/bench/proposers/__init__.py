"""`codespec bench proposers`: who guesses best, on the same prompts."""
