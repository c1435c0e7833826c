"""Django admin of accounts. Roles and tokens change through services, which audit; here they are read."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.accounts.models import ApiToken, IdempotencyKey, Membership, Project, User

admin.site.register(User, UserAdmin)


@admin.register(Project)
class ProjectAdmin(ReadOnlyAdmin):
    list_display = ["slug", "title", "created_at"]
    search_fields = ["slug", "title"]


@admin.register(Membership)
class MembershipAdmin(ReadOnlyAdmin):
    list_display = ["user", "project", "role"]
    list_filter = ["role", "project"]


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    list_display = ["name", "prefix", "user", "project", "expires_at", "revoked_at", "last_used_at"]
    list_filter = ["project"]
    exclude = ["digest"]


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(ReadOnlyAdmin):
    list_display = ["key", "user", "path", "status_code", "created_at"]
    exclude = ["response"]
