"""Recurrent layers of known kinds, computed row by row, with states that can be rolled back."""
