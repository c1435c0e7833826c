"""Django admin of tasks: read only, and without prompts: looks at held-out ones are audited."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.tasks.models import Suite, Task


@admin.register(Suite)
class SuiteAdmin(ReadOnlyAdmin):
    list_display = ["slug", "version", "project", "state", "source", "created_by", "created_at"]
    list_filter = ["state", "project"]
    search_fields = ["slug", "title"]


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    list_display = ["key", "suite", "split", "state", "quarantine_code", "cluster"]
    list_filter = ["state", "split"]
    search_fields = ["key", "cluster"]
    exclude = ["prompt_preview", "bundle"]
