"""Proposers: sources of drafts behind one interface."""
