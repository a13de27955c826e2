"""`python -m codespec`: the command line."""

import sys

from codespec.cli import main

sys.exit(main())
