"""Runs and everything a run leaves behind; the ledger law is written as constraints here."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from uuid6 import uuid7

from apps.accounts.models import Project
from apps.policies.models import Policy
from apps.tasks.models import Suite, Task
from gpu_workers.contracts.checkpoints import version_name


class RunState(models.TextChoices):
    QUEUED = "queued", "Queued"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    PAUSED = "paused", "Paused"
    TRAINED = "trained", "Trained, choosing a checkpoint"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    HALTED = "halted", "Halted by a rule"
    CANCELLED = "cancelled", "Cancelled"


FINAL_RUN_STATES = (RunState.SUCCEEDED, RunState.FAILED, RunState.HALTED, RunState.CANCELLED)


class Run(models.Model):
    """One training run. `spec` is the frozen RunSpec; `state` is coarse, `status_code` and the message say why."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="runs")
    number = models.PositiveIntegerField()  # within the project, for people
    name = models.CharField(max_length=200, blank=True)
    spec = models.JSONField()
    spec_hash = models.CharField(max_length=64)
    suite = models.ForeignKey(Suite, on_delete=models.PROTECT, related_name="runs")
    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="runs_from")
    result = models.ForeignKey(Policy, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    retry_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="retries")
    state = models.CharField(max_length=16, choices=RunState, default=RunState.QUEUED)
    status_code = models.CharField(max_length=40, blank=True)
    status_message = models.TextField(blank=True)
    pause_requested = models.BooleanField(default=False)
    whole_weights = models.BooleanField(default=False, db_default=False)  # it trains every weight, not an adapter
    dataset = models.CharField(max_length=80, blank=True)  # SFT: object key of the examples
    version = models.PositiveIntegerField(default=0)  # newest durable policy version
    step = models.PositiveIntegerField(
        default=0
    )  # newest finished step; ahead of `version` where a step publishes nothing
    confirmed_version = models.IntegerField(default=-1)  # lowest version confirmed by the fleet; -1: none yet
    total_steps = models.PositiveIntegerField(default=0)
    next_task = models.PositiveIntegerField(default=0)  # position in the shuffled task order
    train_cpu_seconds = models.FloatField(default=0)
    last_good_version = models.PositiveIntegerField(null=True)  # of a run that a rule halted: before it was broken
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "number"], name="run_number_unique"),
            models.CheckConstraint(condition=Q(state__in=RunState.values), name="run_state_known"),
            models.CheckConstraint(
                condition=Q(state__in=[*FINAL_RUN_STATES], finished_at__isnull=False)
                | ~Q(state__in=[*FINAL_RUN_STATES]) & Q(finished_at__isnull=True),
                name="run_finished_when_final",
            ),
        ]
        indexes = [models.Index(fields=["project", "state"])]

    def __str__(self) -> str:
        return f"{self.project.slug}/{self.number}"


class AttemptState(models.TextChoices):
    SENT = "sent", "Sent"
    RUNNING = "running", "Running"
    ENDED = "ended", "Ended"


class RunAttempt(models.Model):
    """One trainer process of a run, held by a lease with a fencing token."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    token = models.PositiveBigIntegerField()  # fencing: reports with another token are refused
    state = models.CharField(max_length=16, choices=AttemptState, default=AttemptState.SENT)
    worker = models.CharField(max_length=200, blank=True)
    activity = models.CharField(max_length=20, blank=True)  # loading | waiting | training | publishing
    resume_from = models.CharField(max_length=300, blank=True)  # object key of the checkpoint it was told to load
    resumed_version = models.PositiveIntegerField(null=True)  # null until it said that it started
    version = models.PositiveIntegerField(null=True)  # newest that it reported, what it replayed included
    finished_version = models.PositiveIntegerField(null=True)  # set when it ended with all its work done
    lease_expires_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField(null=True)
    cpu_seconds = models.FloatField(default=0)
    memory_bytes = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)  # first sign of life
    ended_at = models.DateTimeField(null=True)
    ended_code = models.CharField(max_length=40, blank=True)  # of a failure that it reported
    ended_reason = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="attempt_number_unique"),
            models.UniqueConstraint(fields=["run"], condition=~Q(state="ended"), name="attempt_one_alive"),
            models.CheckConstraint(
                condition=Q(state="ended", ended_at__isnull=False) | ~Q(state="ended") & Q(ended_at__isnull=True),
                name="attempt_ended_paired",
            ),
        ]


class BatchState(models.TextChoices):
    SENT = "sent", "Sent to the trainer"
    TRAINED = "trained", "Trained"
    ABANDONED = "abandoned", "Abandoned"


class Batch(models.Model):
    """Groups trained together: batch `index` takes the policy from version `index` to `index + 1`."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="batches")
    attempt = models.PositiveIntegerField()  # the attempt it was last sent to
    index = models.PositiveIntegerField()
    state = models.CharField(max_length=16, choices=BatchState, default=BatchState.SENT)
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(default=timezone.now)
    trained_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "index"], condition=~Q(state="abandoned"), name="batch_index_unique"
            ),
            models.CheckConstraint(
                condition=Q(state="trained", trained_at__isnull=False)
                | ~Q(state="trained") & Q(trained_at__isnull=True),
                name="batch_trained_paired",
            ),
        ]


class GroupState(models.TextChoices):
    PENDING = "pending", "Waiting to be sent"
    RUNNING = "running", "Running"
    READY = "ready", "Ready"
    BATCHED = "batched", "In a batch"
    CLOSED = "closed", "Closed"


class Outcome(models.TextChoices):
    """As GroupOutcome of the contracts."""

    TRAINED = "trained", "Trained"
    STALE = "stale", "Stale"
    ZERO_VARIANCE = "zero_variance", "Zero variance"
    INFRASTRUCTURE_FAILED = "infrastructure_failed", "Infrastructure failed"
    REJECTED = "rejected", "Rejected"
    CANCELLED = "cancelled", "Cancelled"
    SCORED = "scored", "Scored"


class Group(models.Model):
    """G episodes of one task. `run` is null for evaluation groups; `dispatch` counts the times it was sent."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE)
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="groups")
    run_attempt = models.PositiveIntegerField(default=0)
    number = models.PositiveIntegerField(default=0)  # order of admission within the run
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="groups")
    purpose = models.CharField(max_length=16)  # train | evaluation
    state = models.CharField(max_length=16, choices=GroupState, default=GroupState.PENDING)
    outcome = models.CharField(max_length=24, choices=Outcome, blank=True)
    outcome_reason = models.TextField(blank=True)  # of an open group: why its last dispatch failed
    boundary = models.CharField(max_length=16, blank=True)  # whose failure that was
    size = models.PositiveSmallIntegerField()  # episodes asked for
    policy_adapter = models.CharField(max_length=120, blank=True)
    policy_weights = models.CharField(max_length=120, blank=True, default="", db_default="")  # that must answer
    policy_version = models.IntegerField(default=0)  # version the job named
    num_shots = models.PositiveSmallIntegerField(default=0)
    sampling = models.JSONField(default=dict)
    dispatch = models.PositiveSmallIntegerField(default=0)
    timeout_seconds = models.FloatField(default=300)  # from dispatch to deadline
    not_before = models.DateTimeField(null=True)  # back-off of a group that failed
    requeue_number = models.PositiveSmallIntegerField(default=0)  # times its task was admitted again after going stale
    requeue_of = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="requeues")
    straggler = models.CharField(max_length=8, blank=True)  # wait | abort: decided when a batch would leave it behind
    straggler_at = models.DateTimeField(null=True)
    propensity = models.FloatField(null=True)  # probability with which a straggler like it is waited for
    retry_seconds = models.FloatField(default=0)  # episode-seconds of dispatches without a result, at most
    cancelled_seconds = models.FloatField(default=0)  # episode-seconds of the dispatch that was given up
    dispatched_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)  # a worker took it up
    deadline_at = models.DateTimeField(null=True)
    batch = models.ForeignKey(Batch, null=True, on_delete=models.SET_NULL, related_name="groups")
    age = models.PositiveIntegerField(null=True)  # at consumption, versions
    min_version = models.IntegerField(null=True)
    max_version = models.IntegerField(null=True)
    uri = models.CharField(max_length=80, blank=True)  # object key of the group file
    transcript = models.CharField(max_length=80, blank=True)
    reward_mean = models.FloatField(null=True)
    reward_std = models.FloatField(null=True)
    num_scored = models.PositiveSmallIntegerField(default=0)  # episodes with a reward
    duration_seconds = models.FloatField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state="closed") & ~Q(outcome="") | ~Q(state="closed") & Q(outcome=""),
                name="group_outcome_when_closed",
            ),
            models.CheckConstraint(
                condition=~Q(state="batched") | Q(batch__isnull=False), name="group_batched_has_batch"
            ),
            models.CheckConstraint(
                condition=~Q(outcome="trained") | Q(batch__isnull=False, age__isnull=False),
                name="group_trained_has_batch",
            ),
            models.CheckConstraint(
                condition=Q(straggler="", straggler_at__isnull=True, propensity__isnull=True)
                | Q(straggler__in=["wait", "abort"], straggler_at__isnull=False, propensity__isnull=False),
                name="group_straggler_recorded",
            ),
            models.UniqueConstraint(
                fields=["run", "number"], condition=Q(run__isnull=False), name="group_number_unique"
            ),
        ]
        indexes = [
            models.Index(fields=["run", "state"]),
            models.Index(fields=["run", "finished_at"]),
            models.Index(fields=["task"]),
        ]


UNSCORED = ["error", "quarantined"]  # verdicts without a reward


class Episode(models.Model):
    """One finished episode; turns, tokens and logs are in the group's files."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="episodes")
    index = models.PositiveSmallIntegerField()
    seed = models.BigIntegerField()
    verdict = models.CharField(max_length=16)  # pass | fail | error | quarantined
    success = models.BooleanField(default=False)
    reward = models.FloatField(null=True)
    reason_code = models.CharField(max_length=40)
    message = models.TextField(blank=True)
    evidence = models.JSONField(default=dict)
    boundary = models.CharField(max_length=16, blank=True)
    stop_reason = models.CharField(max_length=16)
    answer = models.TextField(blank=True)
    tamper = models.BooleanField(default=False)  # counts as an attempt at reward hacking
    flags = models.JSONField(default=list)  # of the tamper detectors: rule, pattern, severity, where, excerpt
    num_turns = models.PositiveSmallIntegerField(default=0)
    num_tool_calls = models.PositiveSmallIntegerField(default=0)
    num_invalid_calls = models.PositiveSmallIntegerField(default=0)
    num_prompt_tokens = models.PositiveIntegerField(default=0)
    num_sampled_tokens = models.PositiveIntegerField(default=0)
    num_total_tokens = models.PositiveIntegerField(default=0)
    min_version = models.IntegerField(default=0)
    max_version = models.IntegerField(default=0)
    mean_logprob = models.FloatField(default=0)
    engine_seconds = models.FloatField(default=0)
    queue_seconds = models.FloatField(default=0)
    tool_seconds = models.FloatField(default=0)
    verifier_seconds = models.FloatField(default=0)
    total_seconds = models.FloatField(default=0)
    isolation = models.CharField(max_length=200, blank=True)
    limits_hit = models.JSONField(default=list)
    verifier_hash = models.CharField(max_length=64, blank=True)  # of the training verifier; empty: none was asked
    audit_verdict = models.CharField(max_length=16, blank=True)  # of the audit verifier; empty: it did not look
    audit_score = models.FloatField(null=True)
    audit_reason_code = models.CharField(max_length=40, blank=True)
    audit_message = models.TextField(blank=True)
    audit_hash = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["group", "index"], name="episode_index_unique"),
            models.CheckConstraint(
                condition=Q(verdict__in=UNSCORED, reward__isnull=True)
                | ~Q(verdict__in=UNSCORED) & Q(reward__isnull=False),
                name="episode_reward_null_exactly_without_verdict",
            ),
            models.CheckConstraint(
                condition=Q(audit_verdict__in=["", *UNSCORED], audit_score__isnull=True)
                | ~Q(audit_verdict__in=["", *UNSCORED]) & Q(audit_score__isnull=False),
                name="episode_audit_score_exactly_with_verdict",
            ),
        ]


class InstallState(models.TextChoices):
    PENDING = "pending", "Not asked for"
    REQUESTED = "requested", "Installing"
    CONFIRMED = "confirmed", "Confirmed"
    FAILED = "failed", "Failed"
    RETIRED = "retired", "Retired"


class Checkpoint(models.Model):
    """One durable policy version of a run."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.PositiveIntegerField()
    version = models.PositiveIntegerField()
    uri = models.CharField(max_length=300)
    adapter = models.CharField(max_length=300)
    sha256 = models.CharField(max_length=64)
    num_bytes = models.PositiveBigIntegerField(default=0)
    batch_ids = models.JSONField(default=list)  # every batch inside, in order
    resumable = models.BooleanField(default=True)  # False: a trainer found it missing or damaged
    install_state = models.CharField(max_length=16, choices=InstallState, default=InstallState.PENDING)
    dev_success = models.FloatField(null=True)
    dev_n = models.PositiveIntegerField(null=True)
    train_cpu_seconds = models.FloatField(null=True)  # spent by the trainer up to here, all attempts
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "version"], name="checkpoint_version_unique")]

    @property
    def engine_name(self) -> str:
        return version_name(str(self.run_id), self.attempt, self.version)


class RunStep(models.Model):
    """What the stop rules need of a finished step."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="steps")
    number = models.PositiveIntegerField()  # 1 for the first
    values = models.JSONField(default=dict)  # name of the metric -> value; null: it is no number
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="step_number_unique")]


class FleetLease(models.Model):
    """A turn on the engines whose weights are replaced: one holder at a time, first come, first served.

    The holder is a run, or an evaluation (by its id: evaluations are an upper app), or a run with its last evaluation.
    """

    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="leases")
    evaluation_id = models.UUIDField(null=True)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    label = models.CharField(max_length=200)  # the holder, for people
    fleet = models.CharField(max_length=16, default="full")  # there is one
    requested_at = models.DateTimeField(default=timezone.now)
    granted_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["fleet"], condition=Q(granted_at__isnull=False, released_at__isnull=True),
                name="fleet_lease_one_holder",
            ),
            models.UniqueConstraint(fields=["run"], condition=Q(released_at__isnull=True), name="fleet_lease_of_run"),
            models.UniqueConstraint(
                fields=["evaluation_id"], condition=Q(released_at__isnull=True), name="fleet_lease_of_evaluation"
            ),
            models.CheckConstraint(
                condition=Q(run__isnull=False) | Q(evaluation_id__isnull=False), name="fleet_lease_has_holder"
            ),
        ]  # fmt: skip


class FleetInstall(models.Model):
    """A request to the fleet and its answer. Evaluations use it too (run null). Whole models go under a lease."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="installs")
    attempt = models.PositiveIntegerField(default=0)
    version = models.IntegerField(default=0)
    base_model = models.CharField(max_length=100, blank=True)  # slug that the engines must serve
    install = models.JSONField(default=list)
    retire = models.JSONField(default=list)
    transfer = models.CharField(max_length=16, default="adapter", db_default="adapter")  # as Transfer of the contracts
    lease = models.ForeignKey(FleetLease, null=True, on_delete=models.SET_NULL, related_name="installs")
    state = models.CharField(max_length=16, choices=InstallState, default=InstallState.REQUESTED)
    tries = models.PositiveSmallIntegerField(default=1)
    message = models.TextField(blank=True)
    duration_seconds = models.FloatField(null=True)
    pause_seconds = models.FloatField(null=True)
    steady_gap_seconds = models.FloatField(null=True)
    num_bytes = models.PositiveBigIntegerField(default=0)
    density = models.FloatField(null=True)  # elements that these bytes change / all elements; null: not counted
    engines = models.JSONField(default=list)  # engines that confirmed
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)


class FleetLoad(models.Model):
    """What each fleet worker last saw in its engines; back-pressure follows it."""

    worker = models.CharField(max_length=200, primary_key=True)
    running_requests = models.FloatField()
    queued_requests = models.FloatField()
    at = models.DateTimeField()


class EventLevel(models.TextChoices):
    INFO = "info", "Info"
    WARNING = "warning", "Warning"
    ERROR = "error", "Error"


class RunEvent(models.Model):
    """What happened in a run, for people. `id` is the cursor of the live page's log."""

    id = models.BigAutoField(primary_key=True)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(auto_now_add=True)
    level = models.CharField(max_length=8, choices=EventLevel, default=EventLevel.INFO)
    code = models.CharField(max_length=40)
    message = models.TextField()
    data = models.JSONField(default=dict)

    class Meta:
        indexes = [models.Index(fields=["run", "id"])]


class IngestedReport(models.Model):
    """Reports stored or refused, by their unique id: storing one twice is a no-op."""

    report_id = models.CharField(max_length=200, primary_key=True)
    kind = models.CharField(max_length=24)
    run_id = models.UUIDField(null=True)
    refused = models.CharField(max_length=200, blank=True)  # why, e.g. dead attempt
    at = models.DateTimeField(auto_now_add=True)


from apps.runs.reproductions.models import Reproduction as Reproduction  # noqa: E402  a model of this app
