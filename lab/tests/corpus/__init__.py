"""Tests of the corpus, the held-out texts and what is cut out of them."""
