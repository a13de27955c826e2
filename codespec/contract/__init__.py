"""What clients, daemon and commands agree on, each declared once: requests, events, settings and limits."""
