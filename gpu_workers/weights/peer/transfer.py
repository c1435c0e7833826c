"""Peer-to-peer as a WeightTransfer: every engine's host pulls the version from here, then its engine loads it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled
from gpu_workers.contracts.seams import RolloutEngine
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS
from gpu_workers.weights.adapter import InstallError
from gpu_workers.weights.delta.agents import of_engines, served_by_host, told_by_hosts
from gpu_workers.weights.delta.keeping import Wanted
from gpu_workers.weights.delta.manifest import DELTA, MANIFEST
from gpu_workers.weights.in_place import Brought, InPlaceTransfer
from gpu_workers.weights.ordered import OrderedProcess
from gpu_workers.weights.peer.agents import HttpPullingAgent, LocalPullingAgent, PullingAgent
from gpu_workers.weights.peer.messages import Offer, PullRequest
from gpu_workers.weights.served import is_confirmed
from gpu_workers.weights.whole import whole_folder

OFFER_SECONDS = 600.0  # a whole model is read into memory
STALL_SECONDS = 15.0  # Mooncake itself waits for a frozen peer for 30


class PeerTransfer(InPlaceTransfer):
    """WeightTransfer by Mooncake's transfer engine and `update_weights_from_disk` of what was pulled.

    A process here offers the files from its memory; each host's agent pulls them into a folder of its own, which
    counts only when every file has the checksum of the commit. `agents` maps an engine's URL to its agent's; an engine
    without one is on this host.
    """

    def __init__(
        self,
        engines: Sequence[tuple[str, RolloutEngine]],
        store: ObjectStore,
        cache: Path,
        *,
        agents: Mapping[str, str] | None = None,
        secret: str = "",
        address: str = "127.0.0.1",
        stall_seconds: float = STALL_SECONDS,
        offering: Callable[[], OrderedProcess] = lambda: OrderedProcess("gpu_workers.weights.peer.offering"),
    ) -> None:
        """`address`: of this host, as the agents reach it."""
        super().__init__(engines, store, cache)
        here: PullingAgent = LocalPullingAgent(cache / "peer", address)
        urls = (url for url, _ in engines)
        self._agents = of_engines(urls, agents or {}, here, lambda url: HttpPullingAgent(url, secret))
        self._address, self._stall_seconds, self._start_offering = address, stall_seconds, offering

    async def install(
        self, install: Sequence[AdapterInstall], retire: Sequence[str], *, base_fingerprint: str = ""
    ) -> PolicyInstalled:
        """As every transfer of whole models; nothing is offered where all engines have the version already."""
        if install:
            item = max(install, key=lambda one: one.version)
            if all([is_confirmed(url, await engine.info(), item) for url, engine in self._engines]):
                engines = [url for url, _ in self._engines]
                return PolicyInstalled(job_id="", ok=True, installed=[item.name], engines=engines)
        return await super().install(install, retire, base_fingerprint=base_fingerprint)

    async def bring(self, item: AdapterInstall, base_fingerprint: str) -> Brought:
        """To all hosts at once. Raises InstallError."""
        folder = await asyncio.to_thread(whole_folder, self._store, self._cache, item, base_fingerprint)
        wanted = Wanted(name=item.name, uri=item.uri, sha256=item.sha256, base_fingerprint=base_fingerprint)
        serves = await served_by_host(self._engines, self._agents)
        process = self._start_offering()
        try:
            offer = await self._offer(process, folder, item)
            requests = [
                agent.pull(
                    PullRequest(
                        wanted=wanted,
                        offer=offer,
                        serves=served,
                        stall_seconds=self._stall_seconds,
                    )
                )
                for agent, served in serves.items()
            ]
            answers = dict(zip(serves, await asyncio.gather(*requests), strict=True))
        finally:
            process.kill()

        return Brought.in_folders(
            lambda url: answers[self._agents[url]].path,
            item,
            same_bytes=told_by_hosts(self._agents, serves, answers),
            num_bytes=sum(answer.num_bytes for answer in answers.values()),
        )

    async def _offer(self, process: OrderedProcess, folder: Path, item: AdapterInstall) -> Offer:
        """The folder's files in memory there. Raises InstallError."""
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.stat().st_size)
        names = [name for name in names if name not in (MANIFEST, DELTA) and not name.startswith(".")]
        order = {"do": "offer", "folder": str(folder), "names": names, "address": self._address}
        offer = msgspec.convert((await process.order(order, seconds=OFFER_SECONDS))["offer"], Offer)
        weights = next((file for file in offer.files if file.name == WEIGHTS), None)
        if weights is None or weights.sha256 != item.sha256:
            raise InstallError(
                f"weights {item.name} changed between their check and their offer: refused", retryable=True
            )
        return offer
