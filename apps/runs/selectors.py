"""Reads of runs: who may see which, ledgers, events, episodes."""

from django.db.models import Count, Max

from apps.runs.models import Run
from apps.runs.scheduling.ledger import Ledger, build_ledger


def ledger(run: Run) -> Ledger:
    """Counts of the run's groups by state and outcome, in one statement."""
    rows = run.groups.values_list("state", "outcome").annotate(count=Count("id"), last=Max("number")).order_by()
    counts = {(state, outcome): count for state, outcome, count, _ in rows}
    return build_ledger(max((last for *_, last in rows), default=0), counts)
