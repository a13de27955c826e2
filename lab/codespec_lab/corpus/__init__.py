"""Source texts: their collection, the held-out ones, and the gaps cut out of those to be filled in."""
