"""Make the daemon's request from a notebook's cells: the code above is the prefix, the code below the suffix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from codespec_lsp.documents import code_of

from codespec.api.body import CompletionBody
from codespec.api.limits import MAX_SIDE

NOTEBOOK = ".ipynb"


def read_cells(sent: object) -> CompletionBody | None:
    """Return the request for the cells around the cursor, or None in a text cell.

    `sent` has the document's `path` and `language`, the cell with the cursor as `active` (`kind`, `before`, `after`),
    and the cells `above` and `below` (`kind`, `text`). Raises ValueError for anything else.
    """
    try:
        return _read(sent)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("The cells are not as the provider sends them: update it, and reload the page.") from error


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
