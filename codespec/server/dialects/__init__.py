"""The API dialects, one module each: a module converts request bodies to requests, and completions to reply bodies."""
