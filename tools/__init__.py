"""Development tools for the Makefile: building `.venv`, running the README's commands. Never shipped.

Uses the checkout and the standard library only, because it runs before any package is installed.
"""
