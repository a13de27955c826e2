"""The models: the catalogue, downloads, the choice for this machine, and from a name to loadable files. No torch."""
