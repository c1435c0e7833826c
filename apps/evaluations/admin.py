"""Admin of evaluations, gate policies and looks: read-only, services change them."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.evaluations.models import Evaluation, EvaluationArm, EvaluationItem, GatePolicy, HeldoutLook


@admin.register(Evaluation)
class EvaluationAdmin(ReadOnlyAdmin):
    list_display = ["id", "project", "suite", "split", "purpose", "state", "created_at"]
    list_filter = ["state", "purpose", "project"]
    list_select_related = ["project", "suite"]


@admin.register(EvaluationArm)
class EvaluationArmAdmin(ReadOnlyAdmin):
    list_display = ["label", "evaluation", "policy", "num_shots"]
    list_select_related = ["evaluation__suite", "policy"]


@admin.register(EvaluationItem)
class EvaluationItemAdmin(ReadOnlyAdmin):
    list_display = ["evaluation", "arm", "task", "position", "num_tries"]
    list_select_related = ["evaluation__suite", "arm", "task__suite"]


@admin.register(GatePolicy)
class GatePolicyAdmin(ReadOnlyAdmin):
    list_display = ["slug", "version", "project", "alpha", "min_effect", "created_at"]


@admin.register(HeldoutLook)
class HeldoutLookAdmin(ReadOnlyAdmin):
    list_display = ["suite", "number", "alpha", "verdict", "at"]
    list_select_related = ["suite"]
