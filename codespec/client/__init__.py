"""The daemon's client for the language server, the commands and the laboratory; requires only h11 and filelock."""
