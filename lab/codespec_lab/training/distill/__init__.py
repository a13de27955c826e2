"""`codespec distill`: train a drafter on its target's texts in the user's own code; keep it only if it is better."""
