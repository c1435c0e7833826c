"""Which policy each channel serves here: follows the control plane, switches only when the engines hold the adapter."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled
from gpu_workers.contracts.queues import CHANNEL_CHANGES
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.serving.control import ChannelBinding, ControlError, ControlPlane, TokenCache

POLL_SECONDS = 2.0
POLL_SECONDS_WITH_NOTICES = 10.0
RECONNECT_SECONDS = 1.0

logger = logging.getLogger(__name__)

Installer = Callable[[Sequence[AdapterInstall]], Awaitable[PolicyInstalled]]


class ChannelTable:
    """Bindings in force. A request takes its binding once, so one in flight ends on the policy it began with."""

    def __init__(
        self, control: ControlPlane, install: Installer, gateway: str, *, holds: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._control = control
        self._install = install
        self._holds = holds
        self._gateway = gateway
        self._serving: dict[str, ChannelBinding] = {}
        self._lock = asyncio.Lock()
        self.problem = "the channels were not read yet"

    def find(self, model: str) -> ChannelBinding | None:
        return self._serving.get(model)

    def all(self) -> list[ChannelBinding]:
        return sorted(self._serving.values(), key=lambda binding: binding.model)

    async def refresh(self) -> None:
        """Read the channels, install what is new, switch, acknowledge. A failure leaves the old policy in force."""
        async with self._lock:
            try:
                wanted = {binding.model: binding for binding in await self._control.channels()}
            except ControlError as error:
                self.problem = str(error)
                return
            self.problem = ""
            for model in self._serving.keys() - wanted.keys():
                del self._serving[model]
            for binding in wanted.values():
                await self._switch(binding)

    async def _switch(self, binding: ChannelBinding) -> None:
        try:
            await self._ensure_adapter(binding)
            if self._serving.get(binding.model) != binding:
                logger.info("%s serves %s (epoch %d)", binding.model, binding.policy, binding.epoch)
            self._serving[binding.model] = binding
        except WorkerError as error:
            self.problem = f"{binding.model} cannot serve {binding.policy} yet: {error}"
            logger.warning(self.problem)
        serving = self._serving.get(binding.model)
        if serving is None:
            return
        # Repeated with every refresh: it is also how the control plane knows that this gateway lives.
        try:
            await self._control.acknowledge(self._gateway, serving)
        except ControlError as error:
            self.problem = str(error)

    async def _ensure_adapter(self, binding: ChannelBinding) -> None:
        if not binding.adapter or await self._holds(binding.adapter):
            return
        install = AdapterInstall(name=binding.adapter, uri=binding.adapter_uri, sha256=binding.adapter_sha256)
        result = await self._install([install])
        if not result.ok:
            raise WorkerError(Boundary.ENGINE, result.message or "the adapter could not be installed")


class ChannelFollower:
    """Keeps the table current: notices over Redis where there is one, and a poll in any case."""

    def __init__(self, table: ChannelTable, tokens: TokenCache, redis_url: str) -> None:
        self._table = table
        self._tokens = tokens
        self._redis_url = redis_url
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if self._redis_url:
                tasks.create_task(self._listen())
            tasks.create_task(self._poll())

    async def _poll(self) -> None:
        interval = POLL_SECONDS_WITH_NOTICES if self._redis_url else POLL_SECONDS
        while True:
            self._wake.clear()
            await self._table.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if self._table.problem else interval):
                    await self._wake.wait()

    async def _listen(self) -> None:
        while True:
            try:
                async with Redis.from_url(self._redis_url) as client, client.pubsub() as subscription:
                    await subscription.subscribe(CHANNEL_CHANGES)
                    # What was missed while not subscribed: ask again, trust no cached token.
                    self._tokens.forget()
                    self._wake.set()
                    async for message in subscription.listen():
                        if message["type"] == "message":
                            self.notice(message["data"])
            except (RedisError, OSError) as error:
                logger.warning("no notices of channel changes, polling instead: %s", error)
                await asyncio.sleep(RECONNECT_SECONDS)

    def notice(self, data: bytes) -> None:
        """React to one notice; an unknown one only wakes the poll."""
        try:
            content: Any = json.loads(data)
        except ValueError:
            content = {}
        if isinstance(content, dict) and content.get("kind") == "token_revoked":
            self._tokens.forget(str(content.get("sha256", "")))
        self._wake.set()
