"""`codespec bench prediction`."""
