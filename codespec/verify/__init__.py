"""Verification of drafts by the target model, and sampling."""
