"""The daemon's client, for the language server, the commands and the laboratory. Needs only h11 and filelock."""
