"""REST of reviews: the next item, labels, skip, undo, progress and rates."""

from collections.abc import Sequence
from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.api.views import caller
from apps.reviews import selectors, services
from apps.reviews.api import serializers
from apps.reviews.models import Label
from ratchet.bodies import read_body
from ratchet.endpoints import KEEPS_NO_ANSWER, Endpoint, ListEndpoint
from ratchet.filters import FilterSet

_PROJECT = OpenApiParameter("project", str, description="slug; absent: every project you may review in")


class NextItem(Endpoint):
    keeps_answers = False  # each look at an item is checked and audited anew

    @extend_schema(
        parameters=[_PROJECT],
        request=None,
        responses=serializers.NextItemSerializer,
        extensions=KEEPS_NO_ANSWER,
    )
    def post(self, request: Request) -> Response:
        """Reserve the next item for ten minutes; the one you hold comes again."""
        project = request.query_params.get("project", "")
        user = caller(request)
        item = services.next_item(by=user, project_slug=project)
        body = {
            "item": services.show_item(item=item, by=user) if item else None,
            "num_waiting": selectors.num_waiting(user, project),
        }
        return Response(serializers.NextItemSerializer(body).data)


class LabelItem(Endpoint):
    @extend_schema(request=serializers.LabelCreateSerializer, responses={201: serializers.LabelSerializer})
    def post(self, request: Request, pk: str) -> Response:
        """Save your verdict on the item you hold: pass, fail or cannot_tell. The same label again changes nothing."""
        item = selectors.find_item(caller(request), pk)
        values = read_body(request, serializers.LabelCreateSerializer)
        label = services.label_item(item=item, by=caller(request), **values)
        return Response(serializers.LabelSerializer(label).data, status=201)


class LabelFilter(FilterSet):
    project = django_filters.CharFilter(field_name="item__project__slug")
    reviewer = django_filters.CharFilter(field_name="reviewer__username")

    class Meta:
        model = Label
        fields = ["project", "reviewer", "verdict", "hacking"]


class LabelList(ListEndpoint[Label]):
    """Your labels, newest first, and everyone's where you manage reviews; `undone_at` says what was taken back."""

    serializer_class = serializers.LabelSerializer
    queryset = Label.objects.none()
    filterset_class = LabelFilter

    def get_queryset(self) -> QuerySet[Label]:
        return selectors.visible_labels(caller(self.request))

    def represent(self, rows: Sequence[Label]) -> Sequence[Any]:
        services.note_labels_shown(labels=rows, by=caller(self.request))
        return super().represent(rows)


class SkipItem(Endpoint):
    @extend_schema(request=serializers.SkipSerializer, responses={204: None})
    def post(self, request: Request, pk: str) -> Response:
        """Put the item you hold aside, with a reason."""
        item = selectors.find_item(caller(request), pk)
        values = read_body(request, serializers.SkipSerializer)
        services.skip_item(item=item, by=caller(request), reason=values["reason"])
        return Response(status=204)


class UndoLabel(Endpoint):
    keeps_answers = False  # it shows the item

    @extend_schema(request=None, responses=serializers.BlindItemSerializer, extensions=KEEPS_NO_ANSWER)
    def post(self, request: Request, pk: str) -> Response:
        """Take your label or skip back and hold the item again."""
        item = services.undo_label(item=selectors.find_item(caller(request), pk), by=caller(request))
        return Response(serializers.BlindItemSerializer(services.show_item(item=item, by=caller(request))).data)


class ReviewSummary(Endpoint):
    @extend_schema(parameters=[_PROJECT], responses=serializers.ReviewSummarySerializer)
    def get(self, request: Request) -> Response:
        """How far labelling is, and the verifier's weighted error rates."""
        found = selectors.summary(caller(request), request.query_params.get("project", ""))
        return Response(serializers.ReviewSummarySerializer(found).data)
