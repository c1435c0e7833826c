"""Pages of the API: by cursor, newest first, stable while rows are added."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from rest_framework import pagination
from rest_framework.exceptions import NotFound
from rest_framework.request import Request

from ratchet.problems import Problem


class CursorPagination(pagination.CursorPagination):
    """`?page_size=` up to 200, `?ordering=` by what the view allows; `next` and `previous` are whole URLs."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValidationError, ValueError, NotFound) as error:  # or a position that is no value of the ordering field
            raise _invalid("cursor", "is no cursor: take it whole from `next` or `previous`") from error

    def get_page_size(self, request: Request) -> int | None:
        text = request.query_params.get(self.page_size_query_param, str(self.page_size))
        if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= self.max_page_size):
            message = f"must be a whole number from 1 to {self.max_page_size}"
            raise _invalid(self.page_size_query_param, message)
        return int(text)

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        wanted = request.query_params.get("ordering", "")
        if not wanted:
            return tuple(super().get_ordering(request, queryset, view))
        columns: Mapping[str, str] = getattr(view, "ordering_fields", {})
        column = columns.get(wanted.removeprefix("-"))
        if column is None:
            raise _invalid("ordering", f"must be one of {', '.join(_orderings(columns))}")
        sign = "-" if wanted.startswith("-") else ""
        return tuple(dict.fromkeys((f"{sign}{column}", f"{sign}id")))

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        parameters: list[dict[str, Any]] = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == self.page_size_query_param:
                parameter["schema"] |= {"minimum": 1, "maximum": self.max_page_size}
        if columns := getattr(view, "ordering_fields", {}):
            schema = {"type": "string", "enum": _orderings(columns)}
            words = "Sorts by this field; with - the largest come first."
            parameters.append({"name": "ordering", "in": "query", "description": words, "schema": schema})
        return parameters


def _orderings(columns: Mapping[str, str]) -> Sequence[str]:
    return [sign + name for name in columns for sign in ("", "-")]


def _invalid(path: str, message: str) -> Problem:
    return Problem("invalid", 400, "The list cannot be shown.", [{"path": path, "message": message}])
