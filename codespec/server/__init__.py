"""The daemon: one engine thread behind HTTP on loopback, in the dialects of existing completion clients."""
