"""Registers the audit app."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class AuditConfig(AppConfig):
    name = "apps.audit"
    label = "audit"

    def ready(self) -> None:
        from apps.audit import checks  # noqa: F401  registers them
        from apps.audit.roles import grant_on_migrate

        post_migrate.connect(grant_on_migrate, sender=self, dispatch_uid="audit.roles")
