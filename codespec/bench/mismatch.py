"""How a benchmark ends where texts that must be equal are not. Knows the sentence; compares no runs.

In `exact` mode speculation changes no text. One that differs is a fault in codespec, so the command fails once its
figures are written.
"""

from __future__ import annotations

from collections.abc import Sequence

from codespec.errors import MismatchError


def refuse_mismatches(found: Sequence[str]) -> None:
    """Raises MismatchError if there is any; `found` says of each where it is."""
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise MismatchError(
            f"A text differs from plain decoding, which exact mode rules out ({found[0]}{more}): report it with the "
            "output of `codespec doctor`."
        )


def first_difference(ids: Sequence[int], plain: Sequence[int]) -> int | None:
    """The first position at which two texts differ; None where they are equal."""
    if tuple(ids) == tuple(plain):
        return None
    pairs = zip(ids, plain, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(plain)))
