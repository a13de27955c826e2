"""`codespec train`: train the starter pair, teach fill-in-the-middle, and evaluate pairs."""
