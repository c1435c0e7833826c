"""The root of the API: where its lists and its document are."""

from collections.abc import Iterator
from functools import cache

from django.urls import URLPattern, URLResolver, get_resolver, reverse
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from ratchet.endpoints import Endpoint, ListEndpoint

_PREFIX = "api-"
_OTHERS = {"me": "api-me", "schema": "schema", "docs": "swagger", "redoc": "redoc"}
_ADDRESSES = {"type": "object", "additionalProperties": {"type": "string", "format": "uri"}}


class ApiRoot(Endpoint):
    permission_classes = [AllowAny]

    @extend_schema(operation_id="root", responses={200: _ADDRESSES})
    def get(self, request: Request) -> Response:
        """Addresses by name: every list of the API, who one is, and the document that has all the others."""
        return Response({name: request.build_absolute_uri(reverse(url)) for name, url in _names().items()})


@cache
def _names() -> dict[str, str]:
    lists = {name.removeprefix(_PREFIX): name for name in _lists(get_resolver().url_patterns)}
    return dict(sorted(lists.items())) | _OTHERS


def _lists(patterns: list[URLPattern | URLResolver]) -> Iterator[str]:
    """Names of the addresses of lists that need no id."""
    for entry in patterns:
        if isinstance(entry, URLResolver):
            yield from _lists(entry.url_patterns)
            continue
        view = getattr(entry.callback, "cls", None)
        is_list = isinstance(view, type) and issubclass(view, ListEndpoint)
        if is_list and entry.name and entry.name.startswith(_PREFIX) and not entry.pattern.converters:
            yield entry.name
