"""Errors of the API as RFC 9457 problem documents with a stable `code`."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DataError, IntegrityError, OperationalError
from django.http import Http404
from psycopg.errors import DeadlockDetected, SerializationFailure
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

CONTENT_TYPE = "application/problem+json"

logger = logging.getLogger(__name__)

_CODES: list[tuple[type[exceptions.APIException], str]] = [
    (exceptions.ParseError, "malformed_body"),
    (exceptions.NotAuthenticated, "not_authenticated"),
    (exceptions.AuthenticationFailed, "authentication_failed"),
    (exceptions.PermissionDenied, "permission_denied"),
    (exceptions.NotFound, "not_found"),
    (exceptions.MethodNotAllowed, "method_not_allowed"),
    (exceptions.NotAcceptable, "not_acceptable"),
    (exceptions.UnsupportedMediaType, "unsupported_media_type"),
    (exceptions.Throttled, "throttled"),
]


class Problem(Exception):
    """A refusal of the API. `errors` name the field (`path`, dotted) and what is wrong with it (`message`)."""

    def __init__(
        self, code: str, status: int, detail: str, errors: Sequence[Mapping[str, str]] = (), title: str = ""
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.status = status
        self.detail = detail
        self.errors = [dict(error) for error in errors]
        self.title = title or HTTPStatus(status).phrase


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """The problem as an answer."""
    return Response(
        problem_body(problem), status=problem.status, headers=dict(headers or {}), content_type=CONTENT_TYPE
    )


def problem_body(problem: Problem) -> dict[str, Any]:
    """The document; `type` is about:blank because `code` is what programs read."""
    return {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        "errors": problem.errors,
    }


def problem_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """The REST framework's exception handler; None leaves unknown errors to Django (500)."""
    headers: dict[str, str] = {}
    match error:
        case Problem():
            problem = error
        case Http404():
            problem = Problem("not_found", 404, str(error) or "There is no such object, or you may not see it.")
        case RequestDataTooBig():
            limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE // 1024
            problem = Problem("body_too_large", 413, f"The body is larger than the {limit} KiB this address takes.")
        case DataError():
            problem = Problem("out_of_range", 400, "A value is out of the range that can be stored or compared with.")
        case IntegrityError():
            problem = _conflict(error)
        case OperationalError() if isinstance(error.__cause__, DeadlockDetected | SerializationFailure):
            problem = _conflict(error)
        case PermissionDenied():
            problem = Problem("permission_denied", 403, str(error) or "You may not do this.")
        case exceptions.ValidationError():
            problem = Problem(
                "invalid", 400, "The request has fields that cannot be used.", flatten_errors(error.detail)
            )
        case exceptions.APIException():
            problem = Problem(_code(error), error.status_code, _text(error.detail))
            headers = _headers(error)
        case _:
            return None
    set_rollback()
    return problem_response(problem, headers)


def _conflict(error: Exception) -> Problem:
    """Two requests wanted the same at once, and the other one won. Logged: a mistake of ours looks the same."""
    logger.warning("a request lost against another one", exc_info=error)
    return Problem("conflict", 409, "Somebody changed the same at this moment: load it again, then send this anew.")


def flatten_errors(detail: Any, path: str = "") -> list[dict[str, str]]:
    """REST framework's nested error detail as a flat list of path and message."""
    if isinstance(detail, Mapping):
        nested = [flatten_errors(value, _join(path, str(key))) for key, value in detail.items()]
        return [error for errors in nested for error in errors]
    if isinstance(detail, list):
        errors: list[dict[str, str]] = []
        for index, value in enumerate(detail):
            inner = isinstance(value, Mapping | list)
            errors += flatten_errors(value, _join(path, str(index)) if inner else path)
        return errors
    return [{"path": path, "message": str(detail)}]


def _join(path: str, key: str) -> str:
    if key == "non_field_errors":
        return path
    return f"{path}.{key}" if path else key


def _code(error: exceptions.APIException) -> str:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return str(error.default_code)


def _text(detail: Any) -> str:
    return "; ".join(error["message"] for error in flatten_errors(detail))


def _headers(error: exceptions.APIException) -> dict[str, str]:
    headers: dict[str, str] = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    return headers
