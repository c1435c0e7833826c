"""A response of many lines that is written as they are made, in the web server's event loop as in a test's thread."""

from collections.abc import AsyncIterator
from itertools import islice

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse

BATCH = 100  # lines that one visit to the thread of the database fetches


class LinesResponse(StreamingHttpResponse):
    """Streams a plain iterator. Django's own would first gather all of it in memory when served asynchronously."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = iter(self)

        def some() -> bytes:
            return b"".join(islice(parts, BATCH))

        while batch := await sync_to_async(some)():
            yield batch
