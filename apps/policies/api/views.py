"""REST of base models, policies and channels."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.accounts.permissions import Permission, find_project, not_found
from apps.policies import selectors, services
from apps.policies.api import serializers
from apps.policies.models import BaseModel, Channel, Policy
from ratchet.bodies import read_body
from ratchet.endpoints import Endpoint, ListEndpoint, sent_etags
from ratchet.filters import FilterSet
from ratchet.problems import Problem

_DIGITS = 9  # of an epoch
_IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description='the epoch that was looked at, e.g. "3"; else 412'
)


class BaseModelList(ListEndpoint[BaseModel]):
    serializer_class = serializers.BaseModelSerializer
    queryset = BaseModel.objects.none()

    def get_queryset(self) -> QuerySet[BaseModel]:
        return selectors.base_models()


class BaseModelDetail(Endpoint):
    @extend_schema(responses=serializers.BaseModelSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """One registered base model. They belong to no project."""
        model = selectors.base_models().filter(slug=slug).first()
        if model is None:
            raise not_found()
        return Response(serializers.BaseModelSerializer(model).data)


class PolicyFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")
    base_model = django_filters.CharFilter(field_name="base_model__slug")

    class Meta:
        model = Policy
        fields = ["project", "slug", "kind", "base_model", "run_id"]


class PolicyList(ListEndpoint[Policy]):
    serializer_class = serializers.PolicySerializer
    queryset = Policy.objects.none()
    filterset_class = PolicyFilter
    ordering_fields = {"created_at": "id", "slug": "slug"}

    def get_queryset(self) -> QuerySet[Policy]:
        return selectors.visible_policies(self.request.user)

    @extend_schema(request=serializers.PolicyCreateSerializer, responses={201: serializers.PolicySerializer})
    def post(self, request: Request) -> Response:
        """Make a prompt-only policy: a base model and a number of worked examples."""
        values = read_body(request, serializers.PolicyCreateSerializer)
        project = find_project(request.user, values.pop("project"), Permission.POLICY_CREATE)
        model = selectors.find_base_model(values.pop("base_model"))
        policy = services.create_policy(project=project, base_model=model, by=caller(request), **values)
        location = f"/api/v1/policies/{policy.pk}/"
        return Response(serializers.PolicySerializer(policy).data, status=201, headers={"Location": location})


class PolicyDetail(Endpoint):
    @extend_schema(responses=serializers.PolicyDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """The policy with where it came from and what was made of it."""
        policy: Any = selectors.find_policy(request.user, pk)
        family = selectors.lineage(request.user, policy)
        data = serializers.PolicySerializer(policy).data
        brief = serializers.PolicyBriefSerializer
        relatives = {
            "ancestors": brief(family.ancestors, many=True).data,
            "children": brief(family.children, many=True).data,
        }
        return Response({**data, **relatives})


class ChannelFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")

    class Meta:
        model = Channel
        fields = ["project", "name"]


class ChannelList(ListEndpoint[Channel]):
    serializer_class = serializers.ChannelSerializer
    queryset = Channel.objects.none()
    filterset_class = ChannelFilter

    def get_queryset(self) -> QuerySet[Channel]:
        return selectors.visible_channels(self.request.user)

    @extend_schema(request=serializers.ChannelCreateSerializer, responses={201: serializers.ChannelSerializer})
    def post(self, request: Request) -> Response:
        """Set a channel up with its first policy; afterwards only promotions and rollbacks move it."""
        values = read_body(request, serializers.ChannelCreateSerializer)
        project = find_project(request.user, values["project"], Permission.CHANNEL_MOVE)
        policy = selectors.resolve_policy(project, values["policy"])
        channel = services.set_channel(project=project, name=values["name"], policy=policy, by=caller(request))
        location = f"/api/v1/channels/{project.slug}/{channel.name}/"
        return Response(serializers.ChannelSerializer(channel).data, status=201, headers={"Location": location})


class ChannelDetail(Endpoint):
    @extend_schema(responses=serializers.ChannelDetailSerializer)
    def get(self, request: Request, project: str, name: str) -> Response:
        """The channel with its history, the gateways that serve it, and where a rollback would lead."""
        channel = selectors.find_channel(request.user, project, name)
        return _channel_answer(request, channel)


class ChannelRollback(Endpoint):
    @extend_schema(
        parameters=[_IF_MATCH],
        request=serializers.RollbackSerializer,
        responses=serializers.ChannelDetailSerializer,
    )
    def post(self, request: Request, project: str, name: str) -> Response:
        """Put the policy back that was accepted before the present one; it serves the next request."""
        channel = selectors.find_channel(request.user, project, name)
        values = read_body(request, serializers.RollbackSerializer)
        services.rollback_channel(
            channel=channel,
            by=caller(request),
            reason=values["reason"],
            expected_epoch=_expected_epoch(request),
        )
        return _channel_answer(request, selectors.find_channel(request.user, project, name))


def _expected_epoch(request: Request) -> int | None:
    tags = sent_etags(request)
    if tags is None or tags == ["*"]:
        return None
    tag = tags[0].removeprefix("W/").strip('"')
    if len(tags) > 1 or not (tag.isascii() and tag.isdecimal()) or len(tag) > _DIGITS:
        raise Problem("invalid", 400, 'If-Match must hold the epoch, e.g. If-Match: "3".')
    return int(tag)


def _channel_answer(request: Request, channel: Channel) -> Response:
    status = selectors.channel_status(channel)
    brief = serializers.PolicyBriefSerializer
    data = {
        **serializers.ChannelSerializer(channel).data,
        "complete": status.complete,
        "gateways": serializers.GatewaySerializer(status.gateways, many=True).data,
        "rollback_to": brief(status.rollback_to).data if status.rollback_to else None,
        "moves": serializers.MoveSerializer(selectors.channel_history(request.user, channel), many=True).data,
    }
    return Response(data, headers={"ETag": f'"{channel.epoch}"'})
