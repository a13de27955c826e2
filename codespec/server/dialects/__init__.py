"""One file per dialect: each converts request bodies to CompletionRequests and completions to its own replies."""
