"""Who pulls on an engine's host: this process, or the agent there that is asked over HTTP."""

import asyncio
from pathlib import Path
from typing import Protocol

import httpx

from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.delta.agents import HttpAgent
from gpu_workers.weights.delta.errors import DeltaError
from gpu_workers.weights.peer.keeping import PeerKeeper
from gpu_workers.weights.peer.messages import PullAnswer, PullRequest


class PullingAgent(Protocol):
    """Pulls a version to one host. Raises InstallError; what was served there still is."""

    async def pull(self, request: PullRequest) -> PullAnswer: ...


class LocalPullingAgent:
    """The engines' host is this one."""

    def __init__(self, cache: Path, address: str) -> None:
        self._keeper = PeerKeeper(cache, address)

    async def pull(self, request: PullRequest) -> PullAnswer:
        try:
            return await asyncio.to_thread(self._keeper.pull, request)
        except (DeltaError, OSError) as error:
            raise InstallError(str(error), retryable=True) from error


class HttpPullingAgent:
    """`python -m gpu_workers.weights.agent` at a URL."""

    def __init__(self, url: str, secret: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._agent = HttpAgent(url, secret, transport)

    async def pull(self, request: PullRequest) -> PullAnswer:
        return await self._agent.ask("/weights/pull", request, PullAnswer)
