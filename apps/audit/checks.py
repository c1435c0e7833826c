"""A warning where the application's database user could undo what it audits."""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register


@register(Tags.security, deploy=True)
def separate_owner(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """`manage.py check --deploy`."""
    if settings.DATABASE_APP is not None:
        return []
    return [
        Warning(
            "The application connects as the owner of its tables, who could switch the audit trail's protection off.",
            hint="Give DATABASE_URL a role of its own, and the owner's address as DATABASE_OWNER_URL to migrations.",
            id="audit.W001",
        )
    ]
