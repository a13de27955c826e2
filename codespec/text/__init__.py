"""Text and tokens: byte-exact tokenizers, retokenization, token healing, FIM prompts and streaming. Needs no torch."""
