"""What an evaluation adds up: an amount over a count, by row of a table. Knows sums, not what is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Rate:
    """An amount over a count: right answers over gaps, bits over bytes, accepted tokens over rounds."""

    amount: float = 0.0
    count: int = 0

    def add(self, amount: float, count: int = 1) -> None:
        """Adds what one case gave."""
        self.amount += amount
        self.count += count

    @property
    def value(self) -> float | None:
        """The amount of one; None where nothing was counted."""
        return self.amount / self.count if self.count else None


class Table(dict[str, Rate]):
    """Rates by row, in the order in which the rows first came."""

    def add(self, row: str, amount: float, count: int = 1) -> None:
        """Adds one case to a row."""
        self.setdefault(row, Rate()).add(amount, count)

    @property
    def all(self) -> Rate:
        """The sum of all rows."""
        return Rate(sum(rate.amount for rate in self.values()), sum(rate.count for rate in self.values()))

    def as_dict(self) -> dict[str, dict[str, float | int | None]]:
        """Plain JSON values, the sum under "all"."""
        rows = {**self, "all": self.all}
        return {
            row: {"value": rate.value, "amount": round(rate.amount, 6), "count": rate.count}
            for row, rate in rows.items()
        }
