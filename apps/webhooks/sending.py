"""One signed request to a webhook: bounded in time and size, never redirected, only to the address that was checked."""

import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpcore

from apps.webhooks.addresses import RefusedAddress, resolve
from gpu_workers.contracts.text import storable

CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
MAX_SECONDS = 15.0
MAX_RESPONSE = 1000


@dataclass(frozen=True)
class Answer:
    """What came back. `status_code` None: nothing did, and `error` says why."""

    status_code: int | None
    error: str
    response: str
    duration_seconds: float

    @property
    def delivered(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


class _CheckedBackend(httpcore.SyncBackend):
    """Connects to the address that was resolved and checked; TLS still asks for the host's name."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return super().connect_tcp(resolve(host, port), port, timeout, local_address, socket_options)


def post(url: str, body: bytes, headers: Mapping[bytes | str, bytes | str]) -> Answer:
    """Send and read the beginning of the answer. Any failure is an Answer, not an exception."""
    start = time.monotonic()
    timeout = {"connect": CONNECT_SECONDS, "read": READ_SECONDS, "write": READ_SECONDS, "pool": CONNECT_SECONDS}
    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=ssl.create_default_context(), network_backend=_CheckedBackend(), retries=0
            ) as pool,
            pool.stream("POST", url, headers=headers, content=body, extensions={"timeout": timeout}) as response,
        ):
            text = _beginning(response, start)
            return Answer(response.status, _words(response.status), text, time.monotonic() - start)
    except RefusedAddress as error:
        words = str(error)
    except (httpcore.ConnectError, socket.gaierror) as error:
        words = f"cannot be connected to: {error}"
    except (httpcore.TimeoutException, TimeoutError):
        words = f"did not answer within {READ_SECONDS:.0f} s"
    except Exception as error:  # whatever it is, the attempt was made: it must be noted, or it is made for ever
        words = f"{type(error).__name__}: {error}"
    return Answer(None, str(storable(words))[:300], "", time.monotonic() - start)


def _beginning(response: httpcore.Response, start: float) -> str:
    data = b""
    for chunk in response.iter_stream():
        data += chunk
        if len(data) >= MAX_RESPONSE or time.monotonic() - start > MAX_SECONDS:
            break
    return data[:MAX_RESPONSE].decode("utf-8", errors="replace").replace("\x00", "�")


def _words(status: int) -> str:
    if 200 <= status < 300:
        return ""
    return (
        f"redirects ({status}), which is not followed: name the final address"
        if 300 <= status < 400
        else f"answered {status}"
    )
