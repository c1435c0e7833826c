"""What accounts look like in the API."""

from typing import Any

from rest_framework import serializers

from apps.accounts.invitations import DEFAULT_DAYS, MAX_DAYS
from apps.accounts.models import ApiToken, Invitation, Membership, Project, Role, User
from apps.accounts.permissions import Permission, permissions_of
from apps.accounts.services import DEFAULT_TOKEN_DAYS, MAX_TOKEN_DAYS


class ProjectSerializer(serializers.ModelSerializer[Project]):
    class Meta:
        model = Project
        fields = ["id", "slug", "title", "created_at"]
        read_only_fields = ["created_at"]
        extra_kwargs = {"title": {"required": False}, "slug": {"validators": []}}  # the service answers 409


class ProjectTitleSerializer(serializers.Serializer[Any]):
    title = serializers.CharField(max_length=200)


class MembershipSerializer(serializers.ModelSerializer[Membership]):
    username = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(choices=Role.choices)

    class Meta:
        model = Membership
        fields = ["username", "role"]


class RoleSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=Role.choices)


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    project = serializers.SlugRelatedField[Project](slug_field="slug", read_only=True, allow_null=True)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=[str(p) for p in Permission]), read_only=True)

    class Meta:
        model = ApiToken
        fields = [
            "id", "name", "prefix", "project", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at",
        ]  # fmt: skip
        read_only_fields = fields


class TokenCreateSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    project = serializers.SlugField(required=False, allow_null=True, help_text="only good for this project")
    scopes = serializers.ListField(
        child=serializers.CharField(), required=False, default=list, help_text="resource:action; none: all you may do"
    )
    days = serializers.IntegerField(required=False, min_value=1, max_value=MAX_TOKEN_DAYS, help_text="90 unless given")
    expires_at = serializers.DateTimeField(required=False, help_text="in place of `days`")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "days" in attrs and "expires_at" in attrs:
            raise serializers.ValidationError({"expires_at": "Give either days or expires_at."})
        return {"days": DEFAULT_TOKEN_DAYS, **attrs}


class InvitationSerializer(serializers.ModelSerializer[Invitation]):
    project = serializers.SlugRelatedField[Project](slug_field="slug", read_only=True)
    invited_by = serializers.SlugRelatedField[User](slug_field="username", read_only=True, allow_null=True)
    accepted_by = serializers.SlugRelatedField[User](slug_field="username", read_only=True, allow_null=True)

    class Meta:
        model = Invitation
        fields = [
            "id", "project", "email", "role", "invited_by", "created_at", "expires_at", "accepted_at", "accepted_by",
            "revoked_at",
        ]  # fmt: skip
        read_only_fields = fields


class InvitationCreateSerializer(serializers.Serializer[Any]):
    email = serializers.EmailField()
    role = serializers.ChoiceField(choices=Role.choices)
    days = serializers.IntegerField(required=False, default=DEFAULT_DAYS, min_value=1, max_value=MAX_DAYS)


class SentInvitationSerializer(InvitationSerializer):
    url = serializers.URLField(read_only=True, help_text="the link to hand over, shown only in this answer")

    class Meta(InvitationSerializer.Meta):
        fields = [*InvitationSerializer.Meta.fields, "url"]
        read_only_fields = fields


class AcceptSerializer(serializers.Serializer[Any]):
    secret = serializers.CharField(max_length=200, help_text="the last part of the invitation's link")


class IssuedTokenSerializer(TokenSerializer):
    token = serializers.CharField(read_only=True, help_text="the secret, shown only in this answer")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]
        read_only_fields = fields


class MemberOfSerializer(serializers.ModelSerializer[Project]):
    """A project with what the caller may do in it."""

    permissions = serializers.SerializerMethodField()

    class Meta:
        model = Project
        fields = ["slug", "title", "permissions"]

    def get_permissions(self, project: Project) -> list[str]:
        return permissions_of(self.context["request"].user, project)


class MeSerializer(serializers.ModelSerializer[User]):
    email = serializers.CharField(read_only=True, help_text="empty: none is stored")
    projects = MemberOfSerializer(many=True, read_only=True)

    class Meta:
        model = User
        fields = ["id", "username", "email", "is_superuser", "projects"]
        read_only_fields = fields
