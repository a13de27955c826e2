"""Run the command line: `python -m codespec`."""

import sys

from codespec.cli import main

sys.exit(main())
