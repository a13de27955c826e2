"""`codespec train`: trains the starter pair, teaches fill-in-the-middle, and evaluates pairs."""
