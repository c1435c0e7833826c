"""What every endpoint of the API does alike: strict queries, sparse answers, ETags, idempotency, deprecation."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any, ClassVar, TypeVar

from django.db.models import Model
from django.http import HttpRequest
from django.utils.http import http_date, parse_etags
from drf_spectacular.utils import OpenApiParameter
from rest_framework import generics
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ratchet.bodies import refuse_body
from ratchet.idempotency import idempotent
from ratchet.problems import Problem
from ratchet.streaming import JSON_LINES, json_lines, stream

M = TypeVar("M", bound=Model, covariant=True)

FIELDS, AS = "fields", "as"
IF_MATCH = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="the ETag that was looked at; another state is a 412"
)
KEEPS_NO_ANSWER = {"x-keeps-no-answer": True}  # for extend_schema, beside `keeps_answers = False`
_ETAG_LENGTH = 32
_ETAG = r'\s*(?:W/)?"[^",]*"\s*'
_ETAGS = re.compile(f"{_ETAG}(?:,{_ETAG})*")
_EXPORTED = 200  # rows read at once of an export


@dataclass(frozen=True)
class Deprecation:
    """An endpoint that will go: since when it is deprecated, until when it answers, and what replaces it."""

    since: datetime
    sunset: datetime
    successor: str


class Endpoint(APIView):
    """A REST view. What its methods declare with `extend_schema` is also what they take: nothing else is ignored."""

    keeps_answers: ClassVar[bool] = (
        True  # False: answers hold what is shown once, or on a right: none is kept for a key
    )
    deprecation: ClassVar[Deprecation | None] = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        method = (request.method or "").lower()
        name = "get" if method == "head" else method
        handler = getattr(self, name, None)
        if handler is not None and name == "get":
            setattr(self, name, _reading(handler))
        elif handler is not None and name == "post" and self.keeps_answers:
            setattr(self, name, _once(handler))
        return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if (request.method or "").lower() not in self.http_method_names or request.method == "OPTIONS":
            return
        _check_query(self, request)
        if request.method in ("POST", "DELETE") and not _declared(self, request).takes_body:
            refuse_body(request)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Response:
        answer: Response = super().finalize_response(request, response, *args, **kwargs)
        answer.headers.setdefault("Cache-Control", "private, no-cache")
        if self.deprecation is not None:
            answer["Deprecation"] = f"@{int(self.deprecation.since.astimezone(UTC).timestamp())}"
            answer["Sunset"] = http_date(self.deprecation.sunset.timestamp())
            answer["Link"] = f'<{self.deprecation.successor}>; rel="successor-version"'
        return answer


class ListEndpoint(Endpoint, generics.ListAPIView[M]):
    """A list by cursor, or whole and streamed with `?as=jsonl`.

    `ordering_fields`: what `?ordering=` may name, and the column that it sorts by.
    """

    ordering_fields: ClassVar[Mapping[str, str]] = {}

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if AS not in request.query_params:
            page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
            return self.get_paginated_response(self.represent(page))
        errors = [{"path": AS, "message": "must be jsonl"}] if request.query_params[AS] != "jsonl" else []
        paged = (name for name in ("cursor", "page_size") if name in request.query_params)
        errors += [{"path": name, "message": f"does not go with {AS}: everything is sent"} for name in paged]
        if errors:
            raise Problem("invalid", 400, "This cannot be exported so.", errors)
        rows = self.filter_queryset(self.get_queryset())
        paginator: Any = self.paginator
        rows = rows.order_by(*paginator.get_ordering(request, rows, self))
        lines = json_lines(row for part in _parts(rows) for row in self.represent(part))
        return stream(request, lines, JSON_LINES, f"{request.path.strip('/').rpartition('/')[2]}.jsonl")

    def represent(self, rows: Sequence[M]) -> Sequence[Any]:
        """The rows as they are shown. A view whose rows hold held-out content writes here down who is shown it."""
        shown: Sequence[Any] = self.get_serializer(rows, many=True).data
        return shown


def etag_of(data: Any) -> str:
    """The ETag of a representation."""
    return f'"{hashlib.sha256(JSONRenderer().render(data)).hexdigest()[:_ETAG_LENGTH]}"'


def require_match(request: Request, current: Any) -> None:
    """Raise Problem 412 where If-Match names another state than the representation `current`. Without it: nothing.

    Call it with the row locked, in the transaction that changes it: else two who saw the same both go through.
    """
    tags = sent_etags(request)
    if tags is not None and "*" not in tags and etag_of(current) not in tags:
        raise Problem(
            "precondition_failed", 412, "This has changed since you looked: load it again, then send the change anew."
        )


def sent_etags(request: Request) -> list[str] | None:
    """The tags of If-Match, with their quotes; None where it was not sent. Raises Problem 400 for anything else."""
    sent = request.headers.get("If-Match")
    if sent is None:
        return None
    if sent.strip() != "*" and not _ETAGS.fullmatch(sent):
        raise Problem("invalid", 400, 'If-Match must hold ETags in their quotes, e.g. If-Match: "3".')
    return parse_etags(sent)


def _parts(rows: Any) -> Iterator[list[Any]]:
    """The rows of a query in parts, read by a cursor of the server; related rows are fetched for each part."""
    found = rows.iterator(chunk_size=_EXPORTED)
    while part := list(islice(found, _EXPORTED)):
        yield part


def _once(handler: Callable[..., Response]) -> Callable[..., Response]:
    return lambda request, *args, **kwargs: idempotent(request, lambda: handler(request, *args, **kwargs))


def _reading(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A GET with an ETag of what was read, and only the fields that were asked for."""

    def read(request: Request, *args: Any, **kwargs: Any) -> Any:
        response = handler(request, *args, **kwargs)
        if not isinstance(response, Response) or response.status_code not in (200, 202):
            return response
        if isinstance(response.data, dict) and "results" not in response.data and "ETag" not in response:
            response["ETag"] = etag_of(response.data)
        if response["ETag"] in parse_etags(request.headers.get("If-None-Match", "")) if "ETag" in response else False:
            return Response(status=304, headers={"ETag": response["ETag"]})
        if FIELDS in request.query_params:
            response.data = _sparse(response.data, request.query_params[FIELDS])
        return response

    return read


def _sparse(data: Any, wanted: str) -> Any:
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if isinstance(data, dict) and isinstance(data.get("results"), list):
        return {**data, "results": [_pick(row, names) for row in data["results"]]}
    return [_pick(row, names) for row in data] if isinstance(data, list) else _pick(data, names)


def _pick(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    unknown = [name for name in names if name not in row]
    if unknown or not names:
        what = f"{', '.join(map(repr, unknown))} unknown" if unknown else "nothing is named"
        errors = [{"path": FIELDS, "message": f"{what}; fields: {', '.join(row)}"}]
        raise Problem("invalid", 400, "These fields cannot be shown.", errors)
    return {name: row[name] for name in names}


@dataclass(frozen=True)
class _Declared:
    query: frozenset[str]  # names that may come
    repeated: frozenset[str]  # of those, the ones that may come more than once
    takes_body: bool


def _declared(view: APIView, request: Request) -> _Declared:
    method = "get" if request.method == "HEAD" else (request.method or "").lower()
    kind: Any = type(view)
    return _declaration(kind, method)


@cache
def _declaration(view_class: Any, method: str) -> _Declared:
    """What `extend_schema`, the filters and the paginator of a view declare for one method."""
    view = view_class()
    view.request, view.args, view.kwargs, view.format_kwarg = None, (), {}, None
    handler = getattr(view, method, None)
    schema: Any = (getattr(handler, "kwargs", {}).get("schema") or type(view.schema))()
    schema.view, schema.method = view, method.upper()
    query: set[str] = set()
    repeated: set[str] = set()
    for parameter in schema.get_override_parameters():
        if isinstance(parameter, OpenApiParameter):
            if parameter.location == OpenApiParameter.QUERY:
                query.add(parameter.name)
                repeated |= {parameter.name} if parameter.many else set()
        else:  # a serializer
            query |= set(parameter().fields)
    if method == "get" and isinstance(view, generics.ListAPIView):
        query |= _list_names(view)
        repeated |= {name for name, found in _filters(view).items() if "Multiple" in type(found).__name__}
    takes_body = method in ("post", "delete") and schema.get_request_serializer() is not None
    return _Declared(frozenset(query), frozenset(repeated), takes_body)


def _filters(view: Any) -> Mapping[str, Any]:
    filterset = getattr(view, "filterset_class", None)
    return filterset.base_filters if filterset else {}


def _list_names(view: Any) -> set[str]:
    names = set(_filters(view))
    if view.paginator is not None:
        names |= {parameter["name"] for parameter in view.paginator.get_schema_operation_parameters(view)}
    return names


def _check_query(view: APIView, request: Request) -> None:
    """Raise Problem 400 for a parameter that nothing reads, or that comes twice: a misspelt filter shows too much."""
    declared = _declared(view, request)
    known = ", ".join(sorted(declared.query)) or "none"
    errors = [
        {"path": name, "message": f"is no parameter here; known: {known}"}
        for name in request.query_params
        if name not in declared.query
    ]
    errors += [
        {"path": name, "message": "is empty: leave it out, or name a value"}
        for name, values in request.query_params.lists()
        if name in declared.query and "" in values
    ]
    errors += [
        {"path": name, "message": "is given more than once"}
        for name, values in request.query_params.lists()
        if len(values) > 1 and name in declared.query - declared.repeated
    ]
    if errors:
        raise Problem("unknown_parameter", 400, "The address has parameters that cannot be used.", errors)
