"""Build a request to the daemon from a notebook's cells: prefix and suffix are the code above and below the cursor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from codespec_lsp.documents import code_of

from codespec.api.body import CompletionBody
from codespec.api.limits import MAX_SIDE

NOTEBOOK = ".ipynb"


def read_cells(sent: object) -> CompletionBody | None:
    """Build the request for the cells around the cursor, or return None if the cursor is in a text cell.

    `sent` is a JSON object with the document's `path` and `language`, the cell with the cursor as `active` (`kind`,
    `before`, `after`), and the cells `above` and `below` (`kind`, `text`). Raises ValueError for other values.
    """
    try:
        return _read(sent)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            "The cells have an unknown format: update codespec_jupyterlab, and reload the page."
        ) from error


def _read(sent: Any) -> CompletionBody | None:
    path, language, active = str(sent["path"]), str(sent["language"]), sent["active"]
    if active["kind"] != "code":
        return None
    cells = language or "python" if path.endswith(NOTEBOOK) else language
    prefix = _code(sent["above"], cells) + str(active["before"])
    below = _code(sent["below"], cells)
    suffix = str(active["after"]) + (f"\n{below}" if below else "")
    body = CompletionBody(prefix=prefix[-MAX_SIDE:], suffix=suffix[:MAX_SIDE], path=path, document=path)
    if cells:
        body["language"] = cells
    return body


def _code(cells: Iterable[Mapping[str, Any]], language: str) -> str:
    return "".join(code_of(language, str(cell["text"])) for cell in cells if cell["kind"] == "code")
