"""Measurements: what makes them, and what they are written to."""
