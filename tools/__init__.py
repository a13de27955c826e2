"""What the Makefile runs: building `.venv`, and trying the README's commands. Never shipped.

Knows the checkout and the standard library only: it runs before anything is installed.
"""
