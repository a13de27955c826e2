"""The daemon's client, for the language server, the commands and the laboratory. It needs only h11 and filelock."""
