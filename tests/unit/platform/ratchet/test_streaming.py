"""Streamed lines: complete either way they are served, and never gathered before the first is sent."""

import threading
from collections.abc import Iterator

from django.test import AsyncRequestFactory

from ratchet.streaming import BATCH, LinesResponse


def lines(made: list[int], n: int) -> Iterator[str]:
    for number in range(n):
        made.append(threading.get_ident())
        yield f"{number}\n"


async def test_an_event_loop_sends_what_is_made_batch_by_batch_from_another_thread():
    made: list[int] = []
    response = LinesResponse(lines(made, 3 * BATCH + 1))
    response.request = AsyncRequestFactory().get("/")
    sent, counts = b"", []
    async for part in response:
        sent += part
        counts.append(len(made))
    assert sent.decode().split() == [str(n) for n in range(3 * BATCH + 1)]
    assert counts == [BATCH, 2 * BATCH, 3 * BATCH, 3 * BATCH + 1]
    assert len(set(made)) == 1


def test_a_thread_reads_it_line_by_line():
    made: list[int] = []
    parts = iter(LinesResponse(lines(made, 3)))
    assert (next(parts), len(made)) == (b"0\n", 1)
    assert list(parts) == [b"1\n", b"2\n"]
