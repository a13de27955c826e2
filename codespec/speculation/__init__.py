"""Draft-length policies, with their models of acceptance and cost."""
