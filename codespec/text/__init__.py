"""Text and tokens, without torch: byte-exact tokenizers, retokenization, token healing, prompts and endings."""
