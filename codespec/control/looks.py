"""Whether something is looked at that takes time and may be of no use: where looks paid lately, always; elsewhere as
often as a small share of the time allows, to find out. Knows seconds, tokens and a price; knows not what is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SHARE = 0.02  # of the time may go into looks that are not known to pay
LEAST = 0.001  # of it always may, if nothing else is said
FATIGUE = 0.97  # of that share, each such look


@dataclass(slots=True)
class Looks:
    """Looks of one kind, each of `cost` seconds. `insight` is what they gained lately, in tokens, a mean of about
    `memory` looks. Their share of the time falls, down to `least`, with each look that was not known to pay, until one
    gains.
    """

    cost: float
    memory: int
    insight: float = 0.0
    share: float = SHARE
    least: float = LEAST
    _credit: float = field(default=0.0, init=False)

    def step(self, plain: float) -> None:
        """A step begins whose plain round takes so many seconds."""
        self._credit = min(self._credit + self.share * plain, max(self.cost, plain))

    def allow(self, price: float) -> bool:
        """Whether a look pays at so many tokens a second, or is affordable; if so, it is taken."""
        if self.insight > price * self.cost:
            return True
        if self.cost > self._credit:
            return False
        self._credit -= self.cost
        self.share = max(self.least, FATIGUE * self.share)
        return True

    def learn(self, gained: float) -> None:
        """A look gained so many tokens."""
        self.insight += (gained - self.insight) / self.memory
        self.share = SHARE if gained > 0.0 else self.share
