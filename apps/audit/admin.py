"""Django admin of the audit trail: read only."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.audit.models import AuditEvent


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ["sequence", "at", "tag", "actor_name", "subject_type", "subject_id"]
    list_filter = ["tag"]
    search_fields = ["subject_id", "actor_name"]
