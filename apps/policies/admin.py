"""Django admin of policies and channels: read only; promotions and rollbacks move channels."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.policies.models import BaseModel, Channel, ChannelMove, Gateway, Policy


@admin.register(BaseModel)
class BaseModelAdmin(ReadOnlyAdmin):
    list_display = ["slug", "title", "licence", "context_length"]


@admin.register(Policy)
class PolicyAdmin(ReadOnlyAdmin):
    list_display = ["slug", "project", "kind", "base_model", "parent", "run_version", "created_at"]
    list_filter = ["kind", "project"]
    search_fields = ["slug", "title"]


@admin.register(Channel)
class ChannelAdmin(ReadOnlyAdmin):
    list_display = ["name", "project", "policy", "epoch", "updated_at"]


@admin.register(ChannelMove)
class ChannelMoveAdmin(ReadOnlyAdmin):
    list_display = ["channel", "epoch", "kind", "from_policy", "to_policy", "by", "at"]
    list_filter = ["kind"]


@admin.register(Gateway)
class GatewayAdmin(ReadOnlyAdmin):
    list_display = ["name", "channel", "acknowledged_epoch", "last_seen_at"]
