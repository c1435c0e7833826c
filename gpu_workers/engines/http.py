"""HTTP to one engine: connections kept alive, time-outs, back-pressure, and repeats of what is safe to repeat."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any

import httpx
import msgspec

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError

CONNECT_SECONDS = 5.0
CONTROL_SECONDS = 120.0  # of a call that changes the engine, pausing until running requests have ended among them
READ_SECONDS = 10.0
# Idle connections are dropped before SGLang drops them (after 5 s): a server that closes first loses requests.
KEEP_ALIVE_SECONDS = 4.0
MAX_KEPT_CONNECTIONS = 64
BUSY_SECONDS = 60.0  # for so long a full engine is asked again
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 4.0
_JSON = {"Content-Type": "application/json"}
_TRIES = 3  # of a call whose connection failed
_BUSY = frozenset({429, 503})  # nothing was done: the queue is full, or no engine is ready yet


class EngineError(WorkerError):
    """A failure of the engine; `status` is its HTTP status, 0 when it did not answer."""

    def __init__(self, message: str, *, status: int = 0, retryable: bool = True) -> None:
        super().__init__(Boundary.ENGINE, message, retryable=retryable)
        self.status = status


class Repeat(StrEnum):
    """What a lost connection allows. always: twice is as good as once. unsent: only if nothing reached the server."""

    ALWAYS = "always"
    UNSENT = "unsent"


class EngineHttp:
    """Connections to one server. `max_open` generations are under way at once; the others wait here, in order."""

    def __init__(self, url: str, *, max_open: int, client: httpx.AsyncClient | None = None) -> None:
        self.url = url.rstrip("/")
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=MAX_KEPT_CONNECTIONS, keepalive_expiry=KEEP_ALIVE_SECONDS
        )
        self._client = client or httpx.AsyncClient(base_url=self.url, limits=limits)
        self._slots = asyncio.Semaphore(max_open)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Wait for a turn; gives the seconds waited."""
        started = time.monotonic()
        async with self._slots:
            yield time.monotonic() - started

    async def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        repeat: Repeat = Repeat.UNSENT,
        seconds: float | None = CONTROL_SECONDS,
    ) -> httpx.Response:
        """The answer to a call, waiting out a full engine. Raises EngineError with the engine's own reason."""
        timeout, data = httpx.Timeout(seconds, connect=CONNECT_SECONDS), _encoded(body)
        backoff, num_failures = _Backoff(), 0
        while True:
            try:
                response = await self._client.request(method, path, content=data, headers=_JSON, timeout=timeout)
            except httpx.HTTPError as error:
                num_failures += 1
                if num_failures >= _TRIES or not _may_repeat(error, repeat):
                    raise unreachable(self.url, error) from error
                await backoff.wait("")
                continue
            if response.status_code in _BUSY and await backoff.wait(response.headers.get("retry-after", "")):
                continue
            if response.is_error:
                raise refusal(self.url + path, response)
            return response

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any], *, seconds: float) -> AsyncIterator[AsyncIterator[str]]:
        """Lines of an answer as they come; `seconds` bounds the gap between two. Raises EngineError."""
        timeout, data = httpx.Timeout(seconds, connect=CONNECT_SECONDS), _encoded(body)
        backoff = _Backoff()
        while True:
            try:
                async with self._client.stream("POST", path, content=data, headers=_JSON, timeout=timeout) as response:
                    if response.status_code in _BUSY and await backoff.wait(response.headers.get("retry-after", "")):
                        continue
                    if response.is_error:
                        await response.aread()
                        raise refusal(self.url + path, response)
                    yield response.aiter_lines()
                    return
            except httpx.HTTPError as error:
                raise unreachable(self.url, error) from error

    async def healthy(self, path: str, seconds: float) -> bool:
        """Whether the server answers well now; asked once."""
        try:
            timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
            return (await self._client.get(path, timeout=timeout)).is_success
        except httpx.HTTPError:
            return False

    async def close(self) -> None:
        await self._client.aclose()


class _Backoff:
    """Growing waits with jitter, so that callers who were refused together do not come back together."""

    def __init__(self) -> None:
        self._until = time.monotonic() + BUSY_SECONDS
        self._wait = _FIRST_WAIT_SECONDS

    async def wait(self, retry_after: str) -> bool:
        """Sleep as long as the server asks, or a bit longer than last time. False once patience has ended."""
        asked = float(retry_after) if retry_after.replace(".", "", 1).isdecimal() else 0.0
        seconds = max(asked, self._wait * random.uniform(0.5, 1.0))
        if time.monotonic() + seconds > self._until:
            return False
        self._wait = min(2 * self._wait, _LONGEST_WAIT_SECONDS)
        await asyncio.sleep(seconds)
        return True


def _encoded(body: dict[str, Any] | None) -> bytes | None:
    """Thousands of ids a request: msgspec takes a tenth of the time that httpx does."""
    return None if body is None else msgspec.json.encode(body)


def _may_repeat(error: httpx.HTTPError, repeat: Repeat) -> bool:
    unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return unsent or (repeat is Repeat.ALWAYS and isinstance(error, httpx.TransportError))


def refusal(where: str, response: httpx.Response) -> EngineError:
    """The error of an answer with an error status; a full engine, or an adapter not there yet, may help itself."""
    try:
        message = reason(response.json()) or response.text
    except ValueError:
        message = response.text
    return refused(where, message.strip(), response.status_code)


def refused(where: str, message: str, status: int) -> EngineError:
    retryable = status >= 500 or status in _BUSY or "adapter" in message.lower()
    return EngineError(f"engine {where} refused: {message}", status=status, retryable=retryable)


def reason(body: Any) -> str:
    """The message in an error of SGLang, its router or FastAPI; empty when there is none."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error")
    for found in (error.get("message") if isinstance(error, dict) else error, *_messages(body)):
        if found:
            return found if isinstance(found, str) else str(found)
    return ""


def _messages(body: dict[str, Any]) -> list[Any]:
    return [body.get(name) for name in ("error_message", "message", "detail")]


def unreachable(url: str, error: httpx.HTTPError) -> EngineError:
    return EngineError(f"engine {url} does not answer ({type(error).__name__}: {error}); is it running?")
