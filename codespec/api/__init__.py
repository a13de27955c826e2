"""The interface between clients, daemon and commands: requests, events, settings and limits, each declared once."""
