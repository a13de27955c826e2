"""`python -m tools.settings_page`: regenerate the tables of docs/settings.md and docs/editors.md from the declarations.

A table is between `<!-- settings: NAME -->` and `<!-- end -->`; the text around it is written by hand.
"""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from codespec_lsp.settings import EditorSettings, camel

from codespec.api.config import EngineConfig, ServeConfig
from codespec.api.settings import declared

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = (DOCS / "settings.md", DOCS / "editors.md")
SCHEMAS: dict[str, type] = {"engine": EngineConfig, "serve": ServeConfig, "editor": EditorSettings}
TABLE = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(schema: type) -> str:
    """Return the settings of a dataclass as a Markdown table: name, default, meaning."""
    lines = ["| setting | default | |", "|---|---|---|"]
    defaults = {item.name: item.default for item in fields(schema)}
    for name, facts in declared(schema).items():
        label = camel(name) if schema is EditorSettings else name
        lines.append(f"| `{label}` | {facts.shown or spelled(defaults[name])} | {facts.help} |")
    return "\n".join(lines) + "\n"


def spelled(default: Any) -> str:
    """Return a default as a TOML file spells it."""
    if default is MISSING or default == "":
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if isinstance(default, str) else str(default)


def rewritten(page: str) -> str:
    """Return the page with its tables regenerated from the declarations."""
    return TABLE.sub(lambda match: match[1] + table(SCHEMAS[match[2]]) + match[3], page)


def main() -> int:
    """Write the pages and return 0."""
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
