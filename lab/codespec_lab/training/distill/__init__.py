"""`codespec distill`: teaches a drafter what its target writes in the user's own code, and says whether it paid."""
