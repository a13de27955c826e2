"""The sources of a converted folder: only regular files are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codespec.errors import ModelError
from codespec.store.conversion_cache import hash_once
from codespec.store.conversions import convert_gguf


def test_a_pipe_called_like_a_gguf_file_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf can't be used \(it is not a regular file\): "):
        convert_gguf(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="it is not a regular file"):
        hash_once(tmp_path)
