"""Models by name: the catalogue, the store of pulled models and their download. Needs no torch or transformers."""
