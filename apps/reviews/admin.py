"""Admin of review items and labels: read-only, services change them."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.reviews.models import Label, ReviewItem


@admin.register(ReviewItem)
class ReviewItemAdmin(ReadOnlyAdmin):
    list_display = ["id", "project", "stratum", "inclusion_probability", "why", "state", "reserved_by"]
    list_filter = ["state", "why", "project"]
    list_select_related = ["project", "reserved_by"]


@admin.register(Label)
class LabelAdmin(ReadOnlyAdmin):
    list_display = ["id", "item", "reviewer", "verdict", "hacking", "created_at", "undone_at"]
    list_select_related = ["item", "reviewer"]
