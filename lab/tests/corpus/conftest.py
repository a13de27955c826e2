"""Real files of the standard library's held-out parts."""

from __future__ import annotations

import pytest
from codespec_lab.corpus.documents import Document
from codespec_lab.corpus.standard_library import held_out_files


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """A dozen real files."""
    files = held_out_files()[:12]
    return [Document("stdlib", inside, "python", path.read_text(encoding="utf-8")) for inside, path in files]
