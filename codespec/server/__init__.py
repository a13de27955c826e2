"""The daemon: an engine that serves completions over HTTP, in the APIs that existing editor clients use."""
