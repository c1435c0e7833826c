"""Pages of the API: by cursor, newest first, stable while rows are added."""

from rest_framework import pagination


class CursorPagination(pagination.CursorPagination):
    """`?page_size=` up to 200; `next` and `previous` are whole URLs."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
