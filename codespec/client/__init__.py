"""The one client of the daemon, for the language server, the commands and the laboratory. Standard library only."""
