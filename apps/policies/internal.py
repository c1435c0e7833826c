"""What serving gateways ask the control plane, below /internal/: tokens, channels, acknowledgements.

Every request carries the secret that gateways and control plane share; no user is involved.
"""

from typing import Any

from django.conf import settings
from django.urls import path
from django.utils.crypto import constant_time_compare
from rest_framework import serializers
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.selectors import introspect
from apps.policies.models import Channel
from apps.policies.selectors import served_channels
from apps.policies.services import acknowledge

SECRET_HEADER = "X-Ratchet-Worker-Secret"  # noqa: S105  the header's name


class HasWorkerSecret(BasePermission):
    """The header equals RATCHET_WORKER_SECRET, compared in constant time; an unset secret opens nothing."""

    message = f"The header {SECRET_HEADER} must hold RATCHET_WORKER_SECRET."

    def has_permission(self, request: Request, view: Any) -> bool:
        expected = settings.RATCHET_WORKER_SECRET
        return bool(expected) and constant_time_compare(request.headers.get(SECRET_HEADER, ""), expected)


class InternalView(APIView):
    authentication_classes = []
    permission_classes = [HasWorkerSecret]
    throttle_classes = []  # gateways ask for every token that they have not seen
    schema = None


class TokenBody(serializers.Serializer[Any]):
    token = serializers.CharField(max_length=200)


class AckBody(serializers.Serializer[Any]):
    gateway = serializers.CharField(max_length=100)
    project = serializers.CharField()
    channel = serializers.CharField()
    epoch = serializers.IntegerField(min_value=0)


class Introspect(InternalView):
    def post(self, request: Request) -> Response:
        """{active, user, projects: slugs whose channels the token may call, expires_at}."""
        body = TokenBody(data=request.data)
        body.is_valid(raise_exception=True)
        found = introspect(body.validated_data["token"])
        answer = {"active": found.active, "user": found.user, "projects": list(found.projects)}
        return Response({**answer, "expires_at": found.expires_at})


class Channels(InternalView):
    def get(self, request: Request) -> Response:
        """Every channel with the policy it serves."""
        return Response({"channels": [_binding(channel) for channel in served_channels()]})


class Acknowledge(InternalView):
    def post(self, request: Request) -> Response:
        """A gateway serves a channel's policy of that epoch; it repeats this to say that it lives."""
        body = AckBody(data=request.data)
        body.is_valid(raise_exception=True)
        row = acknowledge(**body.validated_data)
        return Response({"gateway": row.name, "acknowledged_epoch": row.acknowledged_epoch})


def _binding(channel: Channel) -> dict[str, Any]:
    policy = channel.policy
    assert policy is not None
    return {
        "project": channel.project.slug,
        "channel": channel.name,
        "epoch": channel.epoch,
        "policy": policy.slug,
        "policy_id": str(policy.pk),
        "base_model": policy.base_model.slug,
        "adapter": policy.engine_name,
        "adapter_uri": policy.adapter,
        "adapter_sha256": policy.adapter_sha256,
        "num_shots": policy.num_shots,
    }


# Without a trailing slash: programs post here, and a redirect would lose the body.
urlpatterns = [
    path("introspect", Introspect.as_view(), name="internal-introspect"),
    path("channels", Channels.as_view(), name="internal-channels"),
    path("ack", Acknowledge.as_view(), name="internal-ack"),
]
