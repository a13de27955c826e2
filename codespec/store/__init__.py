"""The models: their catalogue, the choice for this machine, downloads, and the files to load. Imports no torch."""
