"""Admin of gates and decisions: read-only, services change them."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.promotions.models import Decision, Gate


@admin.register(Gate)
class GateAdmin(ReadOnlyAdmin):
    list_display = ["number", "project", "channel", "candidate", "incumbent", "state", "verdict", "created_at"]
    list_filter = ["state", "verdict", "project"]
    list_select_related = ["project", "channel__project", "candidate", "incumbent"]


@admin.register(Decision)
class DecisionAdmin(ReadOnlyAdmin):
    list_display = ["gate", "kind", "by", "second_by", "effective_at"]
    list_select_related = ["gate__candidate", "gate__incumbent", "by", "second_by"]
