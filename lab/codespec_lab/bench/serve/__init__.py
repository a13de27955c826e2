"""`codespec bench serve`: a daemon under load, with and without speculation in turn."""
