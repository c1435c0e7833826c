"""Disk-delta as a WeightTransfer: every engine's host rebuilds the version, then its engine loads that folder."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import RolloutEngine
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.weights.delta.agents import (
    Agent,
    BringRequest,
    HttpAgent,
    LocalAgent,
    of_engines,
    served_by_host,
    told_by_hosts,
)
from gpu_workers.weights.delta.keeping import Wanted
from gpu_workers.weights.in_place import Brought, InPlaceTransfer


class DeltaTransfer(InPlaceTransfer):
    """WeightTransfer by `update_weights_from_disk` of a folder that the engine's own host has rebuilt.

    `agents` maps an engine's URL to its agent's; an engine without one is on this host, and so is its checkpoint.
    """

    def __init__(
        self,
        engines: Sequence[tuple[str, RolloutEngine]],
        store: ObjectStore,
        cache: Path,
        *,
        agents: Mapping[str, str] | None = None,
        secret: str = "",
    ) -> None:
        super().__init__(engines, store, cache)
        here: Agent = LocalAgent(store, cache / "weights")
        self._agents = of_engines((url for url, _ in engines), agents or {}, here, lambda url: HttpAgent(url, secret))

    async def bring(self, item: AdapterInstall, base_fingerprint: str) -> Brought:
        """On all hosts at once. Raises InstallError."""
        wanted = Wanted(name=item.name, uri=item.uri, sha256=item.sha256, base_fingerprint=base_fingerprint)
        serves = await served_by_host(self._engines, self._agents)
        requests = [agent.bring(BringRequest(wanted=wanted, serves=served)) for agent, served in serves.items()]
        answers = dict(zip(serves, await asyncio.gather(*requests), strict=True))
        densities = [found for answer in answers.values() if (found := answer.held.density) is not None]

        return Brought.in_folders(
            lambda url: answers[self._agents[url]].held.path,
            item,
            same_bytes=told_by_hosts(self._agents, serves, answers),
            num_bytes=sum(answer.held.num_bytes for answer in answers.values()),
            density=max(densities, default=None),
        )
