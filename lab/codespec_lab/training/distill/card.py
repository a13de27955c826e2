"""The distilled drafter's card, and the decision whether it is better."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codespec.store.catalogue import find_entry
from codespec.text.control_tokens import read_json
from codespec_lab.corpus.documents import write_atomically

LEAST_GAIN, MOST_LOSS = 1.01, 0.03  # minimum gain beyond chance; maximum loss of acceptance elsewhere

_CARD = """---
language: code
library_name: transformers
license: {licence}
tags: [code, codespec, drafter]
---
# A drafter for {target}, distilled on one code base

Made from {drafter} by `codespec distill`. It guesses ahead what {target} writes in this code; the target checks every
guess, so its mistakes cost time and never text. Use it with `--drafter` and this folder.

| accepted a round (drafts of {length} tokens by the drafter alone, greedy) | before | after | |
|---|---|---|---|
| held-out files of the code ({here_places} places) | {here_before} | {here_after:.3f} | {here_gain} |
| {elsewhere} ({elsewhere_places} places) | {elsewhere_before} | {elsewhere_after:.3f} | {elsewhere_gain} |

| | |
|---|---|
| learned from | {written} texts that {target} wrote, {read} that it read{own} |
| files | {learned_files} learned from, {held_files} held out by a hash of their paths |
| recipe | {method}; step {best_step} of {steps}; AdamW, rate {rate}; text loss and forward KL; seed {seed}; {dtype} |
| vocabularies | {shared:,} of the target's {vocabulary:,} tokens are tokens of the drafter too |

Licence: {licence_line}. The code base is not part of this folder, but its names and idioms may show in the guesses.

```sh
{command}
```
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Accepted tokens per round before and after, on held-out files and elsewhere; before is None for a new drafter."""

    here_before: float | None
    here_after: float
    elsewhere_before: float | None
    elsewhere_after: float

    @property
    def reason(self) -> str:
        """Why the old drafter is better, or "" if the new one is."""
        if self.here_before is None or self.elsewhere_before is None:
            return ""
        if self.here_after < LEAST_GAIN * self.here_before:
            return f"{self.here_after:.3f} tokens accepted a round on held-out files, {self.here_before:.3f} before"
        if self.elsewhere_after < (1 - MOST_LOSS) * self.elsewhere_before:
            return f"{self.elsewhere_after:.3f} tokens accepted a round elsewhere, {self.elsewhere_before:.3f} before"
        return ""


def write_card(folder: Path, facts: dict[str, Any], found: Comparison) -> None:
    """Write the card into the drafter's folder. Raise TrainingError."""
    text = _CARD.format(
        **facts,
        here_before=_or_none(found.here_before),
        here_after=found.here_after,
        here_gain=gain(found.here_before, found.here_after),
        elsewhere_before=_or_none(found.elsewhere_before),
        elsewhere_after=found.elsewhere_after,
        elsewhere_gain=gain(found.elsewhere_before, found.elsewhere_after),
    )
    write_atomically(folder / "README.md", text.encode())


def gain(before: float | None, after: float) -> str:
    """Return the change as a percentage, or "" without a value before."""
    return f"{100 * (after / before - 1):+.1f} %" if before else ""


def licence_of(name: str, folder: Path) -> tuple[str, str]:
    """Return a drafter's licence as its card's field and as a clause: from the catalogue, its own card, or unknown."""
    entry = find_entry(name)
    if entry is not None:
        return entry.licence.lower(), f"an adapted work of {entry.title}, under its licence ({entry.licence})"
    stated = str(read_json(folder / "config.json").get("license") or _licence_line(folder / "README.md"))
    if stated:
        return stated, f"an adapted work of its drafter, under that one's licence ({stated})"
    return "other", "that of the drafter it was made from"


def _licence_line(card: Path) -> str:
    if not card.is_file():
        return ""
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()[:40]
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("license:")), "")


def _or_none(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}"
