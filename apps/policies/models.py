"""Base models, policies with their lineage, channels and their moves, gateways."""

from django.conf import settings
from django.db import models
from uuid6 import uuid7

from apps.accounts.models import Project


class BaseModel(models.Model):
    """A pretrained model that engines and trainers find below their models folder by its slug."""

    slug = models.SlugField(unique=True)
    title = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64, blank=True)
    licence = models.CharField(max_length=100, blank=True)
    context_length = models.PositiveIntegerField(default=2048)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.slug


class PolicyKind(models.TextChoices):
    PROMPT = "prompt", "Prompt only"
    SUPERVISED = "supervised", "Supervised"
    REINFORCED = "reinforced", "Reinforcement learning"


class Policy(models.Model):
    """Something that can be evaluated, promoted and served: base model + adapter (or none) + prompt shape."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="policies")
    slug = models.SlugField(max_length=80)
    title = models.CharField(max_length=200)
    kind = models.CharField(max_length=16, choices=PolicyKind)
    base_model = models.ForeignKey(BaseModel, on_delete=models.PROTECT)
    num_shots = models.PositiveSmallIntegerField(default=0)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="children")
    # Object key of the PEFT folder, or of the model folder where the policy has whole weights; empty: the base itself
    adapter = models.CharField(max_length=300, blank=True)
    whole_weights = models.BooleanField(default=False, db_default=False)
    adapter_sha256 = models.CharField(max_length=64, blank=True)
    adapter_bytes = models.PositiveBigIntegerField(default=0)
    run_id = models.UUIDField(null=True, blank=True, db_index=True)  # the run that made it (runs is an upper app)
    run_version = models.PositiveIntegerField(null=True, blank=True)  # its step
    train_cpu_seconds = models.FloatField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "slug"], name="policy_slug_unique"),
            models.CheckConstraint(
                condition=models.Q(adapter="", adapter_sha256="")
                | ~models.Q(adapter="") & ~models.Q(adapter_sha256=""),
                name="policy_adapter_has_digest",
            ),
            models.CheckConstraint(
                condition=models.Q(whole_weights=False) | ~models.Q(adapter=""), name="policy_whole_weights_stored"
            ),
        ]
        verbose_name_plural = "policies"

    def __str__(self) -> str:
        return self.slug

    @property
    def engine_name(self) -> str:
        """Name of the adapter, or whole weights, on engines; empty for the bare base model. Equal bytes share it."""
        return f"policy-{self.adapter_sha256[:16]}" if self.adapter else ""


class Channel(models.Model):
    """A name that the gateway serves. `epoch` grows with each move."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="channels")
    name = models.SlugField(max_length=40)
    policy = models.ForeignKey(Policy, null=True, on_delete=models.PROTECT, related_name="channels")
    epoch = models.PositiveIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="channel_unique")]

    def __str__(self) -> str:
        return f"{self.project.slug}/{self.name}"


class MoveKind(models.TextChoices):
    INITIAL = "initial", "Set up"
    PROMOTION = "promotion", "Promotion"
    ROLLBACK = "rollback", "Rollback"


class ChannelMove(models.Model):
    """History of a channel, append-only."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="moves")
    epoch = models.PositiveIntegerField()
    kind = models.CharField(max_length=16, choices=MoveKind)
    from_policy = models.ForeignKey(Policy, null=True, on_delete=models.PROTECT, related_name="+")
    to_policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="+")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    reason = models.TextField(blank=True)
    decision_id = models.UUIDField(null=True, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["channel", "epoch"], name="channel_move_epoch_unique")]
        ordering = ["-epoch"]

    def __str__(self) -> str:
        return f"{self.channel} → {self.to_policy} (epoch {self.epoch}, {self.kind})"


class Gateway(models.Model):
    """A serving gateway that has said hello; a move is complete when every live one acknowledged its epoch."""

    name = models.CharField(max_length=100)
    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="gateways")
    acknowledged_epoch = models.PositiveIntegerField(default=0)
    last_seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "channel"], name="gateway_unique")]

    def __str__(self) -> str:
        return f"{self.name} serving {self.channel}"
