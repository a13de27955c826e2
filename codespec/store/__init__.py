"""The model catalogue, the choice of models for this machine, downloads, and the files to load, without torch."""
