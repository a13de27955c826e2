"""Tests of the corpus, the held-out texts and the gaps cut out of them."""
