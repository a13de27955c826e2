"""The language server, which connects editors to the daemon over HTTP. Never imports torch."""
