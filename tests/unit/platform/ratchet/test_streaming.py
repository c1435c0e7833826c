"""Exports leave as they are made, under ASGI as under WSGI."""

import json

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from rest_framework.request import Request

from ratchet.streaming import json_lines, stream


def lines(made: list[int]):
    for number in range(100):
        made.append(number)
        yield "x" * 9_999 + "\n"


async def test_under_asgi_pieces_are_made_as_they_are_sent():
    request = Request(AsyncRequestFactory().get("/export"))
    assert isinstance(request._request, ASGIRequest)
    made: list[int] = []
    response = stream(request, lines(made), "text/plain", "x.txt")
    assert response.is_async and len(made) == 7, "the first piece only"
    pieces = response.streaming_content
    first = await anext(pieces)
    assert len(made) == 7 and len(first) == 70_000
    await anext(pieces)
    assert len(made) == 14
    rest = [piece async for piece in pieces]
    assert len(made) == 100 and 2 * len(first) + sum(map(len, rest)) == 1_000_000


def test_under_wsgi_too():
    made: list[int] = []
    response = stream(Request(RequestFactory().get("/export")), lines(made), "text/plain", "x.txt")
    assert isinstance(response, StreamingHttpResponse) and not response.is_async
    next(iter(response.streaming_content))
    assert len(made) == 7
    assert response["Content-Disposition"] == 'attachment; filename="x.txt"'


def test_json_lines_hold_one_row_each():
    assert [json.loads(line) for line in json_lines([{"a": "ü\n"}, [1]])] == [{"a": "ü\n"}, [1]]
