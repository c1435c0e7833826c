"""Requests that no view can use: refused before one is asked."""

from collections.abc import Callable
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse, JsonResponse
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import api_view, permission_classes
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from ratchet.pages import error_page
from ratchet.problems import CONTENT_TYPE, Problem, problem_body

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class RefuseNulMiddleware:
    """A NUL character in the address can match nothing and cannot be asked of the database: 400."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "\x00" not in request.path and "\x00" not in unquote(request.META.get("QUERY_STRING", "")):
            return self.get_response(request)
        detail = "The address holds a NUL character (%00): remove it."
        return _answer(request, Problem("malformed_address", 400, detail))


class RequireLengthMiddleware:
    """A body whose length is not stated would be taken for none: 411."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "Transfer-Encoding" not in request.headers or request.headers.get("Content-Length"):
            return self.get_response(request)
        detail = "State the body's Content-Length: bodies in chunks (Transfer-Encoding) are not read."
        return _answer(request, Problem("length_required", 411, detail))


def _answer(request: HttpRequest, problem: Problem) -> HttpResponse:
    if request.path.startswith("/api/"):
        return JsonResponse(problem_body(problem), status=problem.status, content_type=CONTENT_TYPE)
    return error_page(request, problem.status, problem.detail)


@extend_schema(exclude=True)
@api_view(_METHODS)
@permission_classes([AllowAny])
def no_such_endpoint(request: Request, path: str) -> Response:
    """Whatever below /api/ is no address of the API."""
    hint = "" if path.endswith("/") else " Addresses of the API end with a slash."
    raise Problem("no_such_endpoint", 404, f"There is nothing at {request.path}.{hint} See /api/docs/.")
