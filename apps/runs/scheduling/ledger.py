"""The ledger law: every admitted group is open or ended in exactly one outcome, and the counts add up."""

from collections.abc import Mapping
from dataclasses import dataclass

OPEN_STATES = ("pending", "running", "ready", "batched")
OUTCOMES = ("trained", "zero_variance", "stale", "infrastructure_failed", "rejected", "cancelled")


@dataclass(frozen=True)
class Ledger:
    """Groups of a run. `admitted` is the highest admission number, counted apart from the rows' states."""

    admitted: int
    open: Mapping[str, int]
    closed: Mapping[str, int]

    @property
    def num_open(self) -> int:
        return sum(self.open.values())

    @property
    def num_closed(self) -> int:
        return sum(self.closed.values())

    @property
    def adds_up(self) -> bool:
        return self.admitted == self.num_open + self.num_closed


def build_ledger(admitted: int, counts: Mapping[tuple[str, str], int]) -> Ledger:
    """From counts by (state, outcome). An unknown pair is a broken invariant."""
    opened = dict.fromkeys(OPEN_STATES, 0)
    closed = dict.fromkeys(OUTCOMES, 0)
    for (state, outcome), count in counts.items():
        if state == "closed":
            closed[outcome] += count
        else:
            opened[state] += count
    return Ledger(admitted=admitted, open=opened, closed=closed)
