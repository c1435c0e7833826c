"""A small REST client of the demo: creates with an idempotency key, waits with progress."""

import time
from collections.abc import Callable
from typing import Any

import httpx

Resource = dict[str, Any]


class DemoError(RuntimeError):
    """Something the demo cannot go on from; the message says what to do."""


class Api:
    """`Idempotency-Key` makes every step repeatable: a second demo continues on the first one's data."""

    def __init__(self, base_url: str, token: str) -> None:
        self.client = httpx.Client(
            base_url=f"{base_url}/api/v1/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
            transport=httpx.HTTPTransport(retries=8),  # a web process that is being restarted is waited for
        )

    def get(self, path: str, **params: Any) -> Any:
        return self._answer(self.client.get(path, params=params))

    def create(self, path: str, body: Resource, key: str) -> Resource:
        answer: Resource = self._answer(self.client.post(path, json=body, headers={"Idempotency-Key": key}))
        return answer

    def list(self, path: str, **params: Any) -> list[Resource]:
        """Every page of a list."""
        page = self.get(path, **params)
        rows: list[Resource] = list(page["results"])
        while page.get("next"):
            page = self._answer(self.client.get(page["next"]))
            rows += page["results"]
        return rows

    def wait(
        self, path: str, *, done: Callable[[Resource], bool], say: Callable[[Resource], str], limit_seconds: float
    ) -> Resource:
        """Poll a resource until `done`; print what changes."""
        started, last = time.monotonic(), ""
        while True:
            try:
                resource: Resource = self.get(path)
            except httpx.TransportError as error:
                resource, line = {}, f"  waiting for the web process ({type(error).__name__})"
            else:
                line = say(resource)
            if line != last:
                print(line, flush=True)
                last = line
            if resource and done(resource):
                return resource
            if time.monotonic() - started > limit_seconds:
                raise DemoError(f"{path} took longer than {limit_seconds:.0f} s; last seen: {line}")
            time.sleep(2)

    @staticmethod
    def _answer(response: httpx.Response) -> Any:
        if response.is_error:
            raise DemoError(f"{response.request.method} {response.request.url}: {response.status_code} {response.text}")
        return response.json() if response.content else {}
