"""`python -m codespec_lab bench …`: the commands where the laboratory is a folder on Python's path, not installed."""

from __future__ import annotations

import sys

from codespec.cli import main
from codespec_lab.commands import MODULES

if __name__ == "__main__":
    sys.exit(main(parts=MODULES))
