"""Verification of drafts by the target, and sampling."""
