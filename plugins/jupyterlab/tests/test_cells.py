"""The request for a notebook's cell: what stands above and below it, without text cells and magics."""

from __future__ import annotations

from typing import Any

import pytest
from codespec_jupyterlab.cells import read_cells

ABOVE = [
    {"kind": "code", "text": "%matplotlib inline\nimport math"},
    {"kind": "markdown", "text": "Some *text*."},
    {"kind": "code", "text": "%%bash\nls"},
]


def sent(**more: Any) -> dict[str, Any]:
    active = {"kind": "code", "before": "area = ", "after": ""}
    return {"path": "a/b.ipynb", "language": "python", "above": ABOVE, "active": active, "below": [], **more}


def test_the_cells_above_are_the_prefix_and_those_below_the_suffix() -> None:
    body = read_cells(sent(below=[{"kind": "raw", "text": "x"}, {"kind": "code", "text": "print(area)"}]))
    assert body is not None
    assert (body["prefix"], body["suffix"]) == ("import math\narea = ", "\nprint(area)\n")
    assert (body["path"], body["document"], body["language"]) == ("a/b.ipynb", "a/b.ipynb", "python")


def test_the_end_of_the_last_cell_has_an_empty_right_side() -> None:
    body = read_cells(sent())
    assert body is not None and body["suffix"] == ""


def test_a_text_cell_is_not_completed() -> None:
    assert read_cells(sent(active={"kind": "markdown", "before": "area = ", "after": ""})) is None


def test_a_notebook_whose_kernel_is_not_known_is_python_and_a_file_what_its_path_says() -> None:
    notebook, file = read_cells(sent(language="")), read_cells(sent(language="", path="a.ts", above=[]))
    assert notebook is not None and notebook["language"] == "python"
    assert file is not None and "language" not in file


@pytest.mark.parametrize("values", [None, [], {}, {"path": "a"}, sent(active=None), sent(above=[{"kind": "code"}])])
def test_anything_else_is_one_sentence(values: object) -> None:
    with pytest.raises(ValueError, match="The cells have an unknown format"):
        read_cells(values)
