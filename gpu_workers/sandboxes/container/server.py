"""The server of one container as a sandbox sees it: started, asked, and when it falls silent, looked into."""

import asyncio
import logging
import os
import platform
from typing import Any

from gpu_workers.sandboxes.channel import ChannelError, Reply, sealed
from gpu_workers.sandboxes.command import PROXY_PORT, environment
from gpu_workers.sandboxes.container.channel import ContainerChannel, ForgedError
from gpu_workers.sandboxes.container.endings import Ending, ending
from gpu_workers.sandboxes.container.engine import Engine, EngineError
from gpu_workers.sandboxes.container.exits import Exits, Serve
from gpu_workers.sandboxes.container.launch import Launch
from gpu_workers.sandboxes.eventlog import EventLog
from gpu_workers.sandboxes.seccomp import filter_program

SNAPSHOT_SPARE = 8 * 2**20  # names and refusals of a snapshot, beside the files
STATE_TRIES = 5  # an engine may need a moment to notice that a container has ended
STATE_PAUSE_SECONDS = 0.2
MIN_FRAME = 2**20

logger = logging.getLogger(__name__)


class ContainerServer:
    """Implements resident.ServerChannel. `ending` says why it no longer answers."""

    def __init__(self, launch: Launch, engine: Engine) -> None:
        limits = launch.limits
        self.launch = launch
        self.engine = engine
        self.ending: Ending | None = None
        self.log: EventLog | None = None
        self._channel = ContainerChannel(limits.disk_bytes + 2 * limits.output_bytes + SNAPSHOT_SPARE + MIN_FRAME)
        self._killing = asyncio.Lock()
        self._started = False
        self._removed = False

    def grant(self, serve: Serve) -> None:
        """Before the start: let what runs inside connect to a proxy."""
        self._channel.exits = Exits(serve)

    async def start(self) -> dict[str, str]:
        """The facts found inside. Raises EngineError."""
        self._started = True
        launch = self.launch
        await self.engine.prepare(launch)
        config = {
            "environment": environment(launch.contract),
            "disk": launch.limits.disk_bytes,
            "lifetime": launch.lifetime_seconds,
            "filter": filter_program(),
            "machine": platform.machine(),
            "links": dict(launch.contract.links),
            "way_out": PROXY_PORT if self._channel.exits is not None else 0,
        }
        profile = sealed(self.engine.profile, "seccomp") if self.engine.profile else -1
        try:
            line = self.engine.stream(launch, f"/proc/self/fd/{profile}")
            return await self._channel.start(line, config=config, pass_fds=[] if profile < 0 else [profile])
        except ChannelError as error:
            raise EngineError(str(error)) from error
        finally:
            if profile >= 0:
                os.close(profile)

    async def request(self, message: dict[str, Any], *, timeout: float, output_limit: int) -> Reply:
        """One call. A container that the policy has brought down is the call's result, not an error."""
        if self.ending is not None:
            raise ChannelError(self.ending.reason)
        try:
            return await self._channel.request(message, timeout=timeout, output_limit=output_limit)
        except ForgedError as error:
            self.ending = Ending(f"a process inside wrote to the worker's stream: {error}", by_policy=True)
        except ChannelError as error:
            self.ending = await self._look(error)
        if not self.ending.by_policy:
            raise ChannelError(self.ending.reason)
        complaint = self.ending.reason.encode()
        return Reply(-9, b"", complaint, 0.0, timed_out=False, truncated=False, limit_hit=self.ending.limit)

    async def _look(self, error: ChannelError) -> Ending:
        """Ask the engine what became of a container whose stream has broken."""
        try:
            state = await self.engine.state(self.launch.name)
            for _ in range(STATE_TRIES):
                if state is None or not state.running:
                    break
                await asyncio.sleep(STATE_PAUSE_SECONDS)
                state = await self.engine.state(self.launch.name)
        except EngineError as problem:
            return Ending(f"{error}, and the engine does not say why: {problem}")
        return ending(state)

    async def kill(self) -> None:
        """End the client and remove the container. Safe to repeat. Raises EngineError when it cannot be removed."""
        async with self._killing:
            self._channel.stop_client()
            if self._started and not self._removed:
                try:
                    await self.engine.remove(self.launch.name)
                except EngineError as error:
                    logger.warning("container %s is left for the sweep: %s", self.launch.name, error)
                    if self.log is not None:
                        self.log.add(f"not removed: {error}")
                self._removed = True
            await self._channel.finish_client()

    def release(self) -> None:
        """Nothing is left to give up: the workspace went with the container."""
