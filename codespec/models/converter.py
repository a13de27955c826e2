"""The process border of the converters: a source, a folder and a hash in, an exit code and a sentence out. No torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from codespec.errors import CodespecError


def run_converter(convert: Callable[[Path, Path, str], None], arguments: Sequence[str] | None = None) -> int:
    """Convert SOURCE FOLDER SHA256, from the command line by default. Return 0, or 2 after one sentence on stderr."""
    source, folder, digest = sys.argv[1:] if arguments is None else arguments
    try:
        convert(Path(source), Path(folder), digest)
    except CodespecError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        why = error.strerror or error
        print(f"{source} can't be converted into {folder} ({why}): make room there.", file=sys.stderr)
        return 2
    except MemoryError:
        print(f"There is not enough memory to convert {source}: close other programs.", file=sys.stderr)
        return 2
    return 0
