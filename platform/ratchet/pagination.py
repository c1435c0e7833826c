"""Pages of the API: by cursor, newest first, stable while rows are added."""

from typing import Any

from django.core.exceptions import ValidationError
from rest_framework import pagination
from rest_framework.exceptions import NotFound
from rest_framework.request import Request


class CursorPagination(pagination.CursorPagination):
    """`?page_size=` up to 200; `next` and `previous` are whole URLs."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValidationError, ValueError) as error:  # a position that is no value of the ordering field
            raise NotFound("Invalid cursor: take it whole from `next` or `previous`.") from error
