"""What every page shows in its bar: the sections and the counts that wait for this person."""

from typing import Any

from django.http import HttpRequest

from apps.accounts.models import User
from apps.promotions.selectors import decisions_waiting
from apps.reviews.selectors import num_waiting
from ratchet import __version__

SECTIONS = (
    ("home", "Home", "/"),
    ("suites", "Suites", "/suites/"),
    ("runs", "Runs", "/runs/"),
    ("policies", "Policies", "/policies/"),
    ("gates", "Gates", "/gates/"),
    ("review", "Review", "/review/"),
    ("audit", "Audit", "/audit/"),
)


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Sections of the bar, what waits for this person, and the version in the foot."""
    return {"sections": SECTIONS, "ratchet_version": __version__, "counts": _counts(request)}


def _counts(request: HttpRequest) -> dict[str, int]:
    user = getattr(request, "user", None)
    if not isinstance(user, User) or not user.is_authenticated:
        return {}
    return {"gates": len(decisions_waiting(user)), "review": num_waiting(user)}
