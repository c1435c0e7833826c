"""Django admin of runs: read only; the reconciler and the services change them."""

from django.contrib import admin

from apps.accounts.admin_base import ReadOnlyAdmin
from apps.runs.models import (
    Batch,
    Checkpoint,
    Episode,
    FleetInstall,
    Group,
    IngestedReport,
    Reproduction,
    Run,
    RunAttempt,
    RunEvent,
)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ["number", "project", "name", "state", "status_code", "version", "total_steps", "created_at"]
    list_filter = ["state", "project"]
    search_fields = ["name", "id"]


@admin.register(RunAttempt)
class RunAttemptAdmin(ReadOnlyAdmin):
    list_display = ["run", "number", "state", "worker", "activity", "resumed_version", "heartbeat_at", "ended_reason"]
    list_filter = ["state"]


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = ["run", "index", "state", "attempt", "created_at", "trained_at"]
    list_filter = ["state"]


@admin.register(Group)
class GroupAdmin(ReadOnlyAdmin):
    list_display = ["id", "run", "number", "state", "outcome", "policy_version", "age", "reward_mean", "dispatch"]
    list_filter = ["state", "outcome", "purpose"]


@admin.register(Episode)
class EpisodeAdmin(ReadOnlyAdmin):
    # Answers and evidence are content, of held-out tasks too: they are read through the pages, which check and audit.
    list_display = ["id", "group", "index", "verdict", "reward", "reason_code", "total_seconds"]
    list_filter = ["verdict", "reason_code"]
    exclude = ["answer", "message", "evidence", "flags"]


@admin.register(Reproduction)
class ReproductionAdmin(ReadOnlyAdmin):
    list_display = ["id", "episode", "state", "outcome", "verdict", "reward", "num_calls_different", "created_at"]
    list_filter = ["state", "outcome", "marked_flaky"]
    exclude = ["message", "evidence", "calls"]


@admin.register(Checkpoint)
class CheckpointAdmin(ReadOnlyAdmin):
    list_display = ["run", "version", "attempt", "install_state", "dev_success", "num_bytes", "created_at"]
    list_filter = ["install_state"]


@admin.register(FleetInstall)
class FleetInstallAdmin(ReadOnlyAdmin):
    list_display = ["id", "run", "version", "state", "tries", "pause_seconds", "duration_seconds", "message"]
    list_filter = ["state"]


@admin.register(RunEvent)
class RunEventAdmin(ReadOnlyAdmin):
    list_display = ["at", "run", "level", "code", "message"]
    list_filter = ["level", "code"]


@admin.register(IngestedReport)
class IngestedReportAdmin(ReadOnlyAdmin):
    list_display = ["report_id", "kind", "run_id", "refused", "at"]
    list_filter = ["kind"]
