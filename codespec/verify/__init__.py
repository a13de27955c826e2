"""The verifier: what the target says to a draft, and how a token is sampled."""
