"""Trains heads: small networks that read their target's hidden states."""
