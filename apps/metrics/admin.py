"""Django admin of metric points: read only."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.metrics.models import Point


@admin.register(Point)
class PointAdmin(ReadOnlyAdmin):
    list_display = ["id", "run", "name", "step", "value", "attempt", "measured", "at"]
    list_filter = ["measured"]
    search_fields = ["name"]
