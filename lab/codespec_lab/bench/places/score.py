"""Compare a suggestion with the text that is there: the line, its identifiers (as CrossCodeEval, Ding and others 2023,
compares them), and whether the module can still be imported.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

from codespec_lab.bench.places.identifiers import identifiers
from codespec_lab.bench.places.sites import Place
from codespec_lab.bench.quality.execution import Executor

_IMPORT = """\
import importlib, sys
from importlib.machinery import SourceFileLoader
sys.path.insert(0, {root!r})
data = SourceFileLoader.get_data
SourceFileLoader.get_data = lambda self, path: {source!r} if path == {file!r} else data(self, path)
importlib.import_module({module!r})
"""


def score(place: Place, shown: str) -> dict[str, Any]:
    """Return the scores of the first line of a suggestion, each from 0 to 1; all are 0 if nothing is shown."""
    written, expected = shown.partition("\n")[0].strip(), place.typed.strip()
    names, true_names = identifiers(written), identifiers(expected)
    together = len(set(names) & set(true_names))
    both = len(set(names)) + len(set(true_names))
    return {
        "exact": float(written == expected),
        "similarity": SequenceMatcher(None, written, expected, autojunk=False).ratio(),
        "id_exact": float(bool(written) and names == true_names),
        "id_f1": 2 * together / both if both else float(bool(written)),
        "nothing": float(not shown.strip()),
    }


def imports(place: Place, shown: str, executor: Executor) -> float | None:
    """Return whether a Python module can be imported with a suggestion in it (1 or 0); None if it can't without."""
    if place.language != "python" or place.file.name == "__main__.py":
        return None
    parts = place.file.relative_to(place.root).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def passes(text: str) -> bool:
        source = (place.text[: place.begin] + text + place.text[place.end :]).encode()
        words = {"root": str(place.root), "source": source, "file": str(place.file), "module": module}
        return executor.run(_IMPORT.format(**words)) == "passed"

    return float(passes(shown)) if passes(place.typed) else None
