"""Exports that are sent as they are made: nothing of any length is held in memory, under ASGI and WSGI alike."""

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import chain
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.utils.encoders import JSONEncoder

JSON_LINES = "application/x-ndjson"
_CHUNK_BYTES = 64 * 1024


def stream(request: Request, lines: Iterable[bytes | str], content_type: str, filename: str) -> StreamingHttpResponse:
    """An attachment of these lines. Django would first collect a plain iterator whole under ASGI: it gets another.

    The first piece is made at once: what is wrong with the query is then still a refusal, not a broken-off answer.
    """
    following = _chunks(lines)
    chunks = chain([piece] if (piece := next(following, None)) else [], following)
    body: Any = _awaited(chunks) if isinstance(request._request, ASGIRequest) else chunks
    response = StreamingHttpResponse(body, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{filename}"'
    return response


def json_lines(rows: Iterable[Any]) -> Iterator[str]:
    """Each row as one line of JSON."""
    encoder = JSONEncoder(separators=(",", ":"), ensure_ascii=False)
    return (f"{encoder.encode(row)}\n" for row in rows)


def _chunks(lines: Iterable[bytes | str]) -> Iterator[bytes]:
    """Lines put together to pieces that are worth sending."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        data = line.encode() if isinstance(line, str) else line
        waiting.append(data)
        size += len(data)
        if size >= _CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


async def _awaited(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Each piece is made in the thread that the request's database connection belongs to."""

    def following() -> bytes | None:
        return next(chunks, None)

    while (piece := await sync_to_async(following)()) is not None:
        yield piece
