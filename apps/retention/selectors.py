"""Reads of retention."""

from typing import Any

from django.db.models import QuerySet

from apps.accounts.permissions import Actor, require_superuser
from apps.retention.models import Sweep
from apps.retention.rules import RULES


def sweeps(by: Actor) -> QuerySet[Sweep]:
    """Newest first; for superusers."""
    require_superuser(by)
    return Sweep.objects.select_related("applied_by")


def rules() -> list[dict[str, Any]]:
    """What is kept how long, and what pins it."""
    return [{"name": r.name, "what": r.what, "days": r.days, "pinned_by": r.pinned_by} for r in RULES]
