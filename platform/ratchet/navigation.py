"""What every page shows in its bar: the sections and the counts that wait for this person."""

from typing import Any

from django.http import HttpRequest

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
    """Sections of the bar and the version in the foot."""
    return {"sections": SECTIONS, "ratchet_version": __version__}
