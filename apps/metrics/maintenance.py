"""Housekeeping of series: blocks for runs whose journal no new point will seal."""

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from apps.metrics.models import MetricHead
from apps.metrics.sealing import seal
from apps.runs.models import FINAL_RUN_STATES

_IDLE = timedelta(minutes=10)
_MOST_RUNS = 50  # of one call


def seal_idle() -> int:
    """Seal runs that are over, and those without news for ten minutes. Returns how many runs were sealed."""
    over = Q(run__state__in=FINAL_RUN_STATES) | Q(changed_at__lt=timezone.now() - _IDLE)
    heads = MetricHead.objects.filter(over, num_unsealed__gt=0).order_by("changed_at")
    runs = list(heads.values_list("run_id", flat=True)[:_MOST_RUNS])
    for run_id in runs:
        seal(run_id)
    return len(runs)
