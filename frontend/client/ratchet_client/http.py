"""Requests to one server: token, safe retries with back-off, idempotency keys, problems as exceptions, pages."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import httpx

from ratchet_client.errors import ApiError, RatchetError, Unreachable

API = "/api/v1/"
USER_AGENT = "ratchet-client/0.1.0"
_PATH = re.compile(r"[\w.@:-]+(/[\w.@:-]+)*/?")
_BUSY = (502, 503, 504)
_MAX_DELAY_SECONDS = 8.0

Params = Mapping[str, Any]
Files = list[tuple[str, tuple[str, bytes, str]]]


class Http:
    """One connection pool. `patience_seconds`: how long a request is repeated while the server is away.

    A request is repeated after any lost answer only where that is safe: reads, and writes that carry an idempotency
    key. Any other write is repeated only if it cannot have arrived. `on_wait` is told why there is a pause.
    """

    def __init__(
        self, url: str, token: str, *, patience_seconds: float = 30.0, on_wait: Callable[[str], None] | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.patience_seconds = patience_seconds
        self.on_wait = on_wait or (lambda reason: None)
        headers = {"User-Agent": USER_AGENT} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = httpx.Client(base_url=self.url + API, headers=headers, timeout=httpx.Timeout(60.0, connect=10.0))

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, params: Params | None = None) -> Any:
        """The JSON at a path below /api/v1/."""
        return self.request("GET", path, params=params).json()

    def post(
        self,
        path: str,
        body: Any = None,
        *,
        key: str | None = "",
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
        files: Files | None = None,
    ) -> Any:
        """The JSON answer to a write. `key`: idempotency key, "" for a fresh one, None where the server keeps none."""
        sent = dict(headers or {})
        if key is not None:
            sent["Idempotency-Key"] = key or str(uuid4())
        response = self.request("POST", path, body=body, headers=sent, data=data, files=files)
        return response.json() if response.content else None

    def pages(self, path: str, params: Params | None = None) -> Iterator[Any]:
        """Every row of a list. Of `next` only the cursor is used: behind a proxy it may name another host."""
        query = dict(params or {})
        while True:
            page = self.get(path, query)
            if isinstance(page, list):
                yield from page
                return
            yield from page["results"]
            cursor = parse_qs(urlsplit(page.get("next") or "").query).get("cursor")
            if not cursor:
                return
            query["cursor"] = cursor[0]

    @contextmanager
    def stream(self, path: str, params: Params | None = None) -> Iterator[Iterator[str]]:
        """The lines of an export, as they come."""
        _check_path(path)
        try:
            with self._client.stream("GET", path, params=_present(params)) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield response.iter_lines()
        except httpx.TransportError as error:
            raise Unreachable(
                f"The answer of {self.url} ended early ({_reason(error)}): what was written so far is incomplete.",
                hint="Run the same command again.",
            ) from error

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | None = None,
        files: Files | None = None,
    ) -> httpx.Response:
        """The successful answer. Raises ApiError on a refusal, Unreachable when patience is over."""
        _check_path(path)
        sent = dict(headers or {})
        repeatable = method in ("GET", "HEAD", "DELETE") or "Idempotency-Key" in sent
        content = None
        if body is not None:
            content, sent["Content-Type"] = json.dumps(body, allow_nan=False).encode(), "application/json"
        end, tries = time.monotonic() + self.patience_seconds, 0
        while True:
            try:
                response = self._client.request(
                    method, path, params=_present(params), content=content, headers=sent, data=data, files=files
                )
            except httpx.TransportError as error:
                never_arrived = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not (repeatable or never_arrived):
                    raise _unsure(self.url, error) from error
                problem: RatchetError = _unreachable(self.url, error)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.DecodingError) as error:
                raise RatchetError(f"{self.url} cannot be asked: {error}") from error
            else:
                if response.is_success:
                    return response
                problem = _refusal(response)
                if not _worth_repeating(problem, repeatable):
                    raise problem
            delay = _delay(problem, tries)
            if time.monotonic() + delay > end:
                raise problem
            self.on_wait(f"{problem.message} Trying again …")
            time.sleep(delay)
            tries += 1


def _check_path(path: str) -> None:
    """An id that is no id must not lead to another address, or to another host with the token."""
    if not _PATH.fullmatch(path) or ".." in path.split("/"):
        raise RatchetError(f"{path!r} is no address below {API}.", hint="It looks like runs/ or runs/<id>/")


def _present(params: Params | None) -> dict[str, Any]:
    return {name: value for name, value in (params or {}).items() if value not in (None, "", (), [])}


def _worth_repeating(problem: RatchetError, repeatable: bool) -> bool:
    if not isinstance(problem, ApiError):
        return True
    if problem.status == 429:  # turned away before anything was done
        return True
    return repeatable and (problem.status in _BUSY or problem.code == "idempotency_in_flight")


def _delay(problem: RatchetError, tries: int) -> float:
    asked = problem.retry_after if isinstance(problem, ApiError) else None
    backoff = min(_MAX_DELAY_SECONDS, 0.25 * 2.0 ** min(tries, 10))
    return max(asked or 0.0, backoff * random.uniform(0.5, 1.0))  # jitter: clients do not come back all at once


def _refusal(response: httpx.Response) -> RatchetError:
    request = f"{response.request.method} {response.request.url.path}"
    if response.is_redirect:
        target = response.headers.get("Location", "")
        return RatchetError(
            f"{request} was redirected to {target}; a token is not sent on.",
            hint="Log in at the address that the server really has: ratchet login URL",
        )
    problem: Any = None
    if "json" in response.headers.get("Content-Type", ""):
        try:
            problem = response.json()
        except ValueError:
            problem = None
    if not isinstance(problem, Mapping):
        problem = {"detail": f"{request}: {response.status_code} {response.reason_phrase}, without a problem document."}
    wait = response.headers.get("Retry-After", "")
    return ApiError(
        response.status_code, problem, request=request, retry_after=float(wait) if wait.isdecimal() else None
    )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _unreachable(url: str, error: Exception) -> Unreachable:
    return Unreachable(
        f"{url} does not answer ({_reason(error)}).",
        hint="Is the server up, and is this its address? Another one: ratchet login URL",
    )


def _unsure(url: str, error: Exception) -> Unreachable:
    return Unreachable(
        f"{url} did not answer ({_reason(error)}): whether it did what was asked is not known.",
        hint="Look before repeating the command.",
    )
