"""The longest gap between two tokens that requests saw while an install ran, from the engines' own histogram."""

from gpu_workers.contracts.seams import RolloutEngine

Buckets = dict[float, float]  # upper bound in seconds -> cumulative count

_last_seen: dict[str, Buckets] = {}  # engine URL -> histogram at the end of the previous install


class TokenGaps:
    """Bounds on gaps, in seconds; None where no token was sampled in the interval."""

    def __init__(self) -> None:
        self.longest: float | None = None
        self.steady: float | None = None  # since the previous install until this one
        self._before: dict[str, Buckets] = {}

    async def start(self, url: str, engine: RolloutEngine) -> None:
        self._before[url] = await engine.token_gaps()
        if url in _last_seen:
            self.steady = _larger(self.steady, longest_gap(_last_seen[url], self._before[url]))

    async def stop(self, url: str, engine: RolloutEngine) -> None:
        after = await engine.token_gaps()
        self.longest = _larger(self.longest, longest_gap(self._before[url], after))
        _last_seen[url] = after


def longest_gap(before: Buckets, after: Buckets) -> float | None:
    """Upper bound of the highest bucket that grew; the last finite bound for the bucket without one.

    None when nothing grew. A histogram that shrank is of a restarted engine: counted from zero.
    """
    if any(after.get(bound, 0.0) < count for bound, count in before.items()):
        before = {}
    highest, below = None, 0.0
    finite = 0.0
    for bound in sorted(after):
        grown = after[bound] - before.get(bound, 0.0)
        finite = bound if bound != float("inf") else finite
        if grown > below:
            highest = finite
        below = grown
    return highest


def _larger(left: float | None, right: float | None) -> float | None:
    return max((value for value in (left, right) if value is not None), default=None)
