"""`codespec bench prediction`: the gain from a client's prediction when a file is rewritten with small edits."""
