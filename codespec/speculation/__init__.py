"""How far to guess: draft-length policies, what they expect of drafts and what they know of costs."""
