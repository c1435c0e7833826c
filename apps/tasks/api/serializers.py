"""What suites and tasks look like in the API."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.tasks.models import SplitName, Suite, SuiteState, Task
from apps.tasks.selectors import is_protected
from apps.tasks.sources import BUILDERS


class FailureModeSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    meaning = serializers.CharField()


class SuiteVerifierSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    version = serializers.IntegerField()


class ImportNoteSerializer(serializers.Serializer[Any]):
    """What the import changed or left out, e.g. a network access that is denied here."""

    path = serializers.CharField()
    message = serializers.CharField()


class CheckProgressSerializer(serializers.Serializer[Any]):
    """Checks since they were last started; `mark` changes with the suite's state."""

    state = serializers.ChoiceField(choices=SuiteState.choices)
    mark = serializers.CharField()
    done = serializers.IntegerField()
    total = serializers.IntegerField()
    ready = serializers.IntegerField()
    quarantined = serializers.IntegerField()
    left_seconds = serializers.FloatField(allow_null=True)


class SuiteSerializer(serializers.ModelSerializer[Suite]):
    project = serializers.SlugRelatedField[Any](slug_field="slug", read_only=True)
    created_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    failure_modes = FailureModeSerializer(many=True, read_only=True)
    verifier = SuiteVerifierSerializer(read_only=True)
    audit_verifier = serializers.SerializerMethodField()
    num_tasks = serializers.IntegerField(read_only=True)
    num_ready = serializers.IntegerField(read_only=True)
    num_quarantined = serializers.IntegerField(read_only=True)
    num_unchecked = serializers.IntegerField(read_only=True, help_text="still waiting for their check")
    import_notes = ImportNoteSerializer(many=True, read_only=True)

    class Meta:
        model = Suite
        fields = [
            "id", "project", "slug", "version", "title", "description", "distribution", "failure_modes", "verifier",
            "audit_verifier",
            "source", "content_hash", "state", "status_message", "num_tasks", "num_ready", "num_quarantined",
            "num_unchecked", "import_notes", "created_by", "created_at",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(SuiteVerifierSerializer(allow_null=True))
    def get_audit_verifier(self, suite: Suite) -> dict[str, Any] | None:
        """The stronger verifier beside it; null: there is none."""
        return suite.audit_verifier or None


class SplitCountsSerializer(serializers.Serializer[Any]):
    split = serializers.ChoiceField(choices=SplitName.choices)
    total = serializers.IntegerField()
    ready = serializers.IntegerField()
    quarantined = serializers.IntegerField()
    unchecked = serializers.IntegerField()
    clusters = serializers.IntegerField()


class TagCountsSerializer(serializers.Serializer[Any]):
    tag = serializers.CharField()
    splits = serializers.DictField(child=serializers.IntegerField())


class RepresentativenessSerializer(serializers.Serializer[Any]):
    splits = SplitCountsSerializer(many=True)
    tags = TagCountsSerializer(many=True)
    quarantine_reasons = serializers.DictField(child=serializers.IntegerField())
    num_duplicates = serializers.IntegerField()
    shared_clusters = serializers.ListField(child=serializers.CharField())
    largest_cluster_share = serializers.FloatField(allow_null=True)


class SuiteDetailSerializer(SuiteSerializer):
    representativeness = RepresentativenessSerializer(read_only=True)

    class Meta(SuiteSerializer.Meta):
        fields = [*SuiteSerializer.Meta.fields, "representativeness"]
        read_only_fields = fields


class TaskSerializer(serializers.ModelSerializer[Task]):
    """Content fields are null where `content_hidden` is true, and what would tell of the content is empty."""

    suite = serializers.UUIDField(source="suite_id", read_only=True)
    released_by = serializers.SlugRelatedField[Any](slug_field="username", read_only=True, allow_null=True)
    content_hidden = serializers.SerializerMethodField()
    prompt_preview = serializers.SerializerMethodField()

    class Meta:
        model = Task
        fields = [
            "id", "suite", "key", "split", "position", "task_hash", "cluster", "tags", "state", "quarantine_code",
            "quarantine_message", "released_at", "released_by", "release_reason", "content_hidden", "prompt_preview",
        ]  # fmt: skip
        read_only_fields = fields

    def get_content_hidden(self, task: Task) -> bool:
        return not self._shown(task)

    def get_prompt_preview(self, task: Task) -> str | None:
        return task.prompt_preview if self._shown(task) else None

    def to_representation(self, instance: Task) -> dict[str, Any]:
        data: dict[str, Any] = super().to_representation(instance)
        if not self._shown(instance):
            data["quarantine_message"] = ""  # may quote the task
            data["task_hash"] = ""  # of the content: whoever guesses it could tell that the guess is right
        return data

    def _shown(self, task: Task) -> bool:
        return not is_protected(task.split) or bool(self.context["show_heldout"])


class TaskDetailSerializer(TaskSerializer):
    """With the whole content as stored: prompt, tools, contract, verifier with the expected answer, reference."""

    content = serializers.JSONField(read_only=True, allow_null=True)

    class Meta(TaskSerializer.Meta):
        fields = [*TaskSerializer.Meta.fields, "content"]
        read_only_fields = fields


class SuiteCreateSerializer(serializers.Serializer[Any]):
    """`header` declares the suite; the tasks come as `file` (multipart, JSON lines), as `tasks` (a list, JSON), or as
    `archive` (multipart, a zip or tar of Harbor task folders), whose header has slug, title, distribution,
    failure_modes and, where they are not to be drawn, splits.

    `tool_files` (multipart, may be repeated): Python files that tools and MCP servers of the suite name as `file`.
    """

    project = serializers.SlugField()
    header = serializers.JSONField(
        help_text="slug, title, distribution, failure_modes, verifier …; in multipart a JSON text or a file"
    )
    tasks = serializers.ListField(child=serializers.JSONField(), required=False)
    file = serializers.FileField(required=False, help_text="JSON lines, one task each")
    archive = serializers.FileField(required=False, help_text="zip or tar file of Harbor task folders")
    tool_files = serializers.ListField(child=serializers.FileField(), required=False, max_length=50)


class SuiteImportSerializer(serializers.Serializer[Any]):
    project = serializers.SlugField()
    source = serializers.ChoiceField(  # type: ignore[assignment]  # a field named source
        choices=sorted(BUILDERS),
        error_messages={"invalid_choice": f'"{{input}}" is none of {", ".join(sorted(BUILDERS))}.'},
    )


class ReleaseSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=1000, help_text="why the check was wrong about this task")


class PutBackSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=1000, help_text="why this task should not have been released")
