"""The models: catalogue, downloads, choice for this machine, and from a name to a folder that can be loaded. No torch."""
