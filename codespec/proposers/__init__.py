"""Proposers: who guesses what comes next, behind one seam."""
