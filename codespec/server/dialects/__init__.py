"""The API dialects, a module for each: it converts request bodies to requests, and completions to reply bodies."""
