"""Django admin of metrics: read only."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.metrics.models import MetricHead, MetricSeries


@admin.register(MetricHead)
class MetricHeadAdmin(ReadOnlyAdmin):
    list_display = ["run", "revision", "num_points", "num_unsealed", "num_series", "num_refused_points", "changed_at"]


@admin.register(MetricSeries)
class MetricSeriesAdmin(ReadOnlyAdmin):
    list_display = ["id", "run", "name", "attempt", "measured"]
    list_filter = ["measured"]
    search_fields = ["name"]
