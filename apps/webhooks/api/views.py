"""REST of webhooks: set up, change, try, rotate the secret, the delivery log, send again."""

import django_filters
from django.db import transaction
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.accounts.permissions import Permission, find_project
from apps.webhooks import selectors, services
from apps.webhooks.api import serializers
from apps.webhooks.models import Delivery, Webhook
from apps.webhooks.signing import secret_of
from ratchet.bodies import read_body
from ratchet.endpoints import IF_MATCH, KEEPS_NO_ANSWER, Endpoint, ListEndpoint, require_match
from ratchet.filters import FilterSet


class WebhookFilter(FilterSet):
    project = django_filters.CharFilter(field_name="project__slug")

    class Meta:
        model = Webhook
        fields = ["project", "enabled"]


class WebhookList(ListEndpoint[Webhook]):
    """Webhooks of the projects in which you manage them, newest first."""

    serializer_class = serializers.WebhookSerializer
    queryset = Webhook.objects.none()
    filterset_class = WebhookFilter
    keeps_answers = False  # the secret is shown once

    def get_queryset(self) -> QuerySet[Webhook]:
        return selectors.visible_webhooks(self.request.user)

    @extend_schema(
        request=serializers.WebhookCreateSerializer,
        responses={201: serializers.WebhookWithSecretSerializer},
        extensions=KEEPS_NO_ANSWER,
    )
    def post(self, request: Request) -> Response:
        """Have an address told of the project's events. It takes no Idempotency-Key: a kept answer would keep the
        secret; the same address twice is a 409."""
        values = read_body(request, serializers.WebhookCreateSerializer)
        project = find_project(request.user, values.pop("project"), Permission.WEBHOOK_MANAGE)
        webhook = services.create_webhook(project=project, by=caller(request), **values)
        body = {**serializers.WebhookSerializer(webhook).data, "secret": secret_of(webhook.pk, webhook.secret_version)}
        return Response(body, status=201, headers={"Location": f"/api/v1/webhooks/{webhook.pk}/"})


class WebhookDetail(Endpoint):
    @extend_schema(responses=serializers.WebhookSerializer)
    def get(self, request: Request, pk: str) -> Response:
        return Response(serializers.WebhookSerializer(selectors.find_webhook(request.user, pk)).data)

    @extend_schema(
        parameters=[IF_MATCH], request=serializers.WebhookChangeSerializer, responses=serializers.WebhookSerializer
    )
    @transaction.atomic
    def patch(self, request: Request, pk: str) -> Response:
        """Change the address or the events, switch it off or on."""
        webhook = selectors.find_webhook(request.user, pk)
        values = read_body(request, serializers.WebhookChangeSerializer)
        webhook = services.lock(webhook)
        require_match(request, serializers.WebhookSerializer(webhook).data)
        changed = services.change_webhook(webhook=webhook, by=caller(request), **values)
        return Response(serializers.WebhookSerializer(changed).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, pk: str) -> Response:
        """Take it away with its delivery log."""
        services.delete_webhook(webhook=selectors.find_webhook(request.user, pk), by=caller(request))
        return Response(status=204)


class WebhookRotate(Endpoint):
    keeps_answers = False  # the secret is shown once

    @extend_schema(request=None, responses=serializers.WebhookWithSecretSerializer, extensions=KEEPS_NO_ANSWER)
    def post(self, request: Request, pk: str) -> Response:
        """A new secret in place of the present one, at once."""
        webhook = selectors.find_webhook(request.user, pk)
        secret = services.rotate_secret(webhook=webhook, by=caller(request))
        return Response({**serializers.WebhookSerializer(webhook).data, "secret": secret})


class WebhookTest(Endpoint):
    @extend_schema(request=None, responses={202: serializers.DeliveryDetailSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """Send a test message now; the delivery at `Location` says what came of it."""
        webhook = selectors.find_webhook(request.user, pk)
        return _accepted(request, services.send_test(webhook=webhook, by=caller(request)))


class DeliveryFilter(FilterSet):
    class Meta:
        model = Delivery
        fields = ["state", "event_type"]


class DeliveryList(ListEndpoint[Delivery]):
    """The webhook's delivery log, newest first: what waits, and the newest 1,000 that are finished."""

    serializer_class = serializers.DeliverySerializer
    queryset = Delivery.objects.none()
    filterset_class = DeliveryFilter

    def get_queryset(self) -> QuerySet[Delivery]:
        return selectors.deliveries_of(selectors.find_webhook(self.request.user, self.kwargs["pk"]))


class DeliveryDetail(Endpoint):
    @extend_schema(responses=serializers.DeliveryDetailSerializer)
    def get(self, request: Request, pk: str) -> Response:
        """One delivery with its message and every attempt."""
        return Response(serializers.DeliveryDetailSerializer(selectors.find_delivery(request.user, pk)).data)


class DeliveryRedeliver(Endpoint):
    @extend_schema(request=None, responses={202: serializers.DeliveryDetailSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """Send it again, as a new delivery with the same message."""
        delivery = selectors.find_delivery(request.user, pk)
        return _accepted(request, services.redeliver(delivery=delivery, by=caller(request)))


def _accepted(request: Request, delivery: Delivery) -> Response:
    found = selectors.find_delivery(request.user, delivery.pk)
    headers = {"Location": f"/api/v1/webhook-deliveries/{delivery.pk}/"}
    return Response(serializers.DeliveryDetailSerializer(found).data, status=202, headers=headers)
