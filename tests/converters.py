"""Converters in the tests' own process: starting one, which tests/store tests, takes seconds of imports."""

from __future__ import annotations

import contextlib
import io
from importlib import import_module
from pathlib import Path

import torch

from codespec.errors import ModelError, quoted
from codespec.store.conversions import Conversion


def convert_here(conversion: Conversion, folder: Path) -> None:
    """Replace `conversions.run_converter`. Raises ModelError with the converter's sentence."""
    main, threads = import_module(conversion.module).main, torch.get_num_threads()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as message:
        code = main([*conversion.sources, str(folder), conversion.digest])
    torch.set_num_threads(threads)
    if code:
        raise ModelError(quoted(message.getvalue().strip().splitlines()[-1]))
