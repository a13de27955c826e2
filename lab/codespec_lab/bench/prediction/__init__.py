"""`codespec bench prediction`: what a client's own guess saves where a file is written again with small edits."""
