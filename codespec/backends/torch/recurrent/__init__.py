"""Recurrent layers of known kinds, computed exactly, with states that can be rolled back."""
