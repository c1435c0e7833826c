"""Django admin of webhooks, for reading."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.webhooks.models import Delivery, Webhook


@admin.register(Webhook)
class WebhookAdmin(ReadOnlyAdmin):
    list_display = ["url", "project", "enabled", "created_at"]
    list_filter = ["project", "enabled"]


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ["event_type", "webhook", "state", "num_attempts", "created_at"]
    list_filter = ["state"]
