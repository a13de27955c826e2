"""Format an evaluation as text tables: one pair, or two pairs side by side with a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codespec_lab.training.evaluation import PairScores
from codespec_lab.training.scores import Rate, RateTable

ARROW, MISSING = " → ", "–"
Format = Callable[[Sequence[Rate]], str]
Column = tuple[str, Sequence[RateTable], Format]


def report(scores: Sequence[PairScores]) -> str:
    """Return the tables of one pair, or of two pairs with the older first."""
    parts = [_models(scores), _by_row(scores), _by_context(scores), _milliseconds(scores)]
    parts += [f"note: {note}" for note in dict.fromkeys(note for pair in scores for note in pair.notes)]
    if len(scores) == 2:
        parts.append(verdict(scores[0], scores[1]))
    return "\n\n".join(part for part in parts if part)


def verdict(before: PairScores, after: PairScores) -> str:
    """Say whether `after` beats `before` in bits per byte (each model), exact gaps, and acceptance (each length)."""
    figures = {
        "bits per byte": _fewer_bits(before, after),
        "infilling": [sum(_outcomes(before)) < sum(_outcomes(after))],
        "acceptance": _more_accepted(before, after),
    }
    not_better = [
        name if better else f"{name} (not measured for both)"
        for name, better in figures.items()
        if not (better and all(better))
    ]
    answer = f"not better in: {', '.join(not_better)}" if not_better else f"better in all three ({', '.join(figures)})"
    changes = list(zip(_outcomes(before), _outcomes(after), strict=True))
    gained, lost = changes.count((False, True)), changes.count((True, False))
    return f"{answer}; gaps filled exactly: {gained} gained, {lost} lost"


def _fewer_bits(before: PairScores, after: PairScores) -> list[bool]:
    return [_value(after.bits[name].all) < _value(before.bits[name].all) for name in after.bits if name in before.bits]


def _more_accepted(before: PairScores, after: PairScores) -> list[bool]:
    lengths = [length for length in after.acceptance if length in before.acceptance]
    pairs = [(before.acceptance[length].by_row.all, after.acceptance[length].by_row.all) for length in lengths]
    return [_value(old) < _value(new) for old, new in pairs]


def _outcomes(pair: PairScores) -> list[bool]:
    return [*pair.lines.outcomes, *pair.blocks.outcomes, *pair.tasks.outcomes]


def _value(rate: Rate) -> float:
    return rate.value or 0.0


def _models(scores: Sequence[PairScores]) -> str:
    names = ("before", "after") if len(scores) == 2 else ("pair",)
    lines = []
    for name, pair in zip(names, scores, strict=True):
        models = [
            f"{role} {facts['parameters'] / 1e6:.2f} M ({facts['sha256'][:8]})" for role, facts in pair.models.items()
        ]
        lines.append(f"{name}: {', '.join(models)}")
    return "\n".join(lines)


def _by_row(scores: Sequence[PairScores]) -> str:
    roles = [role for role in ("target", "drafter") if any(role in pair.bits for pair in scores)]
    columns: list[Column] = [
        (f"bits/byte {role}", [pair.bits.get(role, RateTable()) for pair in scores], _decimals) for role in roles
    ]
    columns += [
        ("lines exact", [_merged(pair.lines.exact, pair.tasks.exact) for pair in scores], _shares),
        ("line bytes right", [_merged(pair.lines.bytes_right, pair.tasks.bytes_right) for pair in scores], _percent),
        ("blocks exact", [pair.blocks.exact for pair in scores], _shares),
        ("blocks' first lines", [pair.blocks.first_line for pair in scores], _shares),
        ("block bytes right", [pair.blocks.bytes_right for pair in scores], _percent),
        ("loops", [pair.loops for pair in scores], _shares),
    ]
    columns += _accepted_columns(scores, by_context=False)
    return _table("language", columns)


def _by_context(scores: Sequence[PairScores]) -> str:
    return _table("context", _accepted_columns(scores, by_context=True)) if any(p.acceptance for p in scores) else ""


def _accepted_columns(scores: Sequence[PairScores], *, by_context: bool) -> list[Column]:
    columns: list[Column] = []
    for length in dict.fromkeys(length for pair in scores for length in pair.acceptance):
        found = [pair.acceptance.get(length) for pair in scores]
        tables = [RateTable() if one is None else one.by_context if by_context else one.by_row for one in found]
        columns.append((f"accepted of {length}", tables, _with_counts if by_context else _decimals))
    return columns


def _merged(first: RateTable, second: RateTable) -> RateTable:
    return RateTable({**first, **second})


def _milliseconds(scores: Sequence[PairScores]) -> str:
    roles = dict.fromkeys(role for pair in scores for role in pair.ms_per_token)
    times = [
        f"{role} {ARROW.join(f'{pair.ms_per_token[role]:.2f}' for pair in scores if role in pair.ms_per_token)}"
        for role in roles
    ]
    return f"milliseconds per token (plain, batch 1, median): {', '.join(times)}" if times else ""


def _table(corner: str, columns: Sequence[Column]) -> str:
    rows = list(dict.fromkeys(row for _, tables, _ in columns for table in tables for row in table))
    lines = [[corner, *(title for title, _, _ in columns)]]
    lines += [[row, *(show([t.get(row, Rate()) for t in tables]) for _, tables, show in columns)] for row in rows]
    lines.append(["all", *(show([t.all for t in tables]) for _, tables, show in columns)])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _decimals(rates: Sequence[Rate]) -> str:
    return _joined(rates, lambda value: f"{value:.3f}")


def _percent(rates: Sequence[Rate]) -> str:
    return _joined(rates, lambda value: f"{100 * value:.1f} %")


def _joined(rates: Sequence[Rate], show: Callable[[float], str]) -> str:
    """Format the figure of each pair, or one dash if no pair has a count."""
    if not any(rate.count for rate in rates):
        return MISSING
    return ARROW.join(MISSING if rate.value is None else show(rate.value) for rate in rates)


def _shares(rates: Sequence[Rate]) -> str:
    """Format the number of correct cases of each pair and the total."""
    if not any(rate.count for rate in rates):
        return MISSING
    return f"{ARROW.join(f'{rate.amount:.0f}' for rate in rates)} of {rates[-1].count}"


def _with_counts(rates: Sequence[Rate]) -> str:
    return f"{_decimals(rates)} ({rates[-1].count})"
