"""What the gateway asks the control plane: whose a token is, which policy a channel serves, and the acknowledgement."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

SECRET_HEADER = "X-Ratchet-Worker-Secret"  # noqa: S105 (a header's name)
ACTIVE_SECONDS = 30.0  # a revocation is pushed; this bounds it where the push was lost
INACTIVE_SECONDS = 3.0
MAX_CACHED_TOKENS = 4096
MAX_TOKEN_LENGTH = 200


class ControlError(RuntimeError):
    """The control plane did not answer as agreed."""


class Introspection(msgspec.Struct, frozen=True, kw_only=True):
    """What a token is good for."""

    active: bool
    user: str = ""
    projects: list[str] = []


class ChannelBinding(msgspec.Struct, frozen=True, kw_only=True):
    """One channel and the policy it serves. `adapter` empty: the base model itself."""

    project: str
    channel: str
    policy: str
    base_model: str = ""
    adapter: str = ""
    adapter_uri: str = ""
    adapter_sha256: str = ""
    num_shots: int = 0
    epoch: int = 0

    @property
    def model(self) -> str:
        """The name clients use."""
        return f"{self.project}/{self.channel}"


class _Channels(msgspec.Struct, frozen=True, kw_only=True):
    channels: list[ChannelBinding]


class ControlPlane:
    """HTTP client of the control plane's /internal/ endpoints. Raises ControlError."""

    def __init__(self, url: str, secret: str, client: httpx.AsyncClient) -> None:
        self._url = url.rstrip("/")
        self._headers = {SECRET_HEADER: secret}
        self._client = client

    async def introspect(self, token: str) -> Introspection:
        return msgspec.convert(await self._post("introspect", {"token": token}), Introspection)

    async def channels(self) -> list[ChannelBinding]:
        data = await self._send("GET", "channels")
        try:
            return msgspec.convert(data, _Channels).channels
        except msgspec.ValidationError as error:
            raise ControlError(f"/internal/channels answered something else: {error}") from error

    async def acknowledge(self, gateway: str, binding: ChannelBinding) -> None:
        """This gateway serves the channel's policy of that epoch."""
        body = {"gateway": gateway, "project": binding.project, "channel": binding.channel, "epoch": binding.epoch}
        await self._post("ack", body)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._send("POST", path, json=body)

    async def _send(self, method: str, path: str, **options: Any) -> Any:
        url = f"{self._url}/internal/{path}"
        try:
            response = await self._client.request(method, url, headers=self._headers, **options)
            response.raise_for_status()
            return response.json() if response.content else {}
        except (httpx.HTTPError, ValueError) as error:
            raise ControlError(f"{method} {url}: {error or type(error).__name__}") from error


class TokenCache:
    """Introspections kept for seconds, forgotten at once when a token is revoked. Holds hashes, never tokens."""

    def __init__(self, control: ControlPlane, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, Introspection]] = OrderedDict()

    async def introspect(self, token: str) -> Introspection:
        if len(token) > MAX_TOKEN_LENGTH:
            return Introspection(active=False)
        digest = hashlib.sha256(token.encode()).hexdigest()
        until, known = self._known.get(digest, (0.0, Introspection(active=False)))
        if self._clock() < until:
            return known
        fresh = await self._control.introspect(token)
        keep = ACTIVE_SECONDS if fresh.active else INACTIVE_SECONDS
        self._known[digest] = (self._clock() + keep, fresh)
        self._known.move_to_end(digest)
        while len(self._known) > MAX_CACHED_TOKENS:
            self._known.popitem(last=False)
        return fresh

    def forget(self, sha256: str = "") -> None:
        """Drop one token by its hash; all of them without one."""
        if sha256:
            self._known.pop(sha256, None)
        else:
            self._known.clear()
