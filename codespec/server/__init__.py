"""The daemon: one engine thread behind HTTP on loopback, in every dialect that completion clients already speak."""
