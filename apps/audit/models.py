"""Audit events: append-only, hash-chained per project. No foreign keys, so they outlive what they describe."""

from django.db import models


class AuditEvent(models.Model):
    """`tag` is source:subject:action, e.g. user:run:submit. `hash` covers every field and the previous hash."""

    id = models.BigAutoField(primary_key=True)
    project_id = models.UUIDField(null=True, db_index=True)
    sequence = models.PositiveBigIntegerField()  # 1, 2, 3 … within the project
    at = models.DateTimeField()
    tag = models.CharField(max_length=100, db_index=True)
    actor_id = models.BigIntegerField(null=True)
    actor_name = models.CharField(max_length=150, default="system")
    subject_type = models.CharField(max_length=50)
    subject_id = models.CharField(max_length=64)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.TextField(blank=True)
    evidence = models.JSONField(default=dict)  # digests of what the actor saw
    origin = models.JSONField(default=dict)  # from where: address, and session, token or process
    format = models.PositiveSmallIntegerField(default=1)  # which fields the hash covers
    previous_hash = models.CharField(max_length=64, blank=True)
    hash = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project_id", "sequence"], name="audit_sequence_unique", nulls_distinct=False
            )
        ]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.tag} by {self.actor_name}"


class AuditHead(models.Model):
    """The newest event of a chain, signed with the platform's secret key: an end that was cut off shows."""

    project_id = models.UUIDField(null=True)
    sequence = models.PositiveBigIntegerField()
    hash = models.CharField(max_length=64)
    signature = models.CharField(max_length=200)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project_id"], name="audit_head_unique", nulls_distinct=False)]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.hash}"
