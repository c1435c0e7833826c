"""Disk-delta as a WeightTransfer: every engine's host rebuilds the version, then its engine loads that folder."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import EngineInfo, RolloutEngine
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.weights.delta.agents import Agent, BringAnswer, BringRequest, HttpAgent, LocalAgent, of_engines
from gpu_workers.weights.delta.keeping import Wanted
from gpu_workers.weights.in_place import Brought, InPlaceTransfer
from gpu_workers.weights.served import Serving, serving_of


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
        serves: dict[Agent, list[Serving]] = {}
        for url, engine in self._engines:
            serves.setdefault(self._agents[url], []).append(serving_of(await engine.info()))
        requests = [agent.bring(BringRequest(wanted=wanted, serves=served)) for agent, served in serves.items()]
        answers = dict(zip(serves, await asyncio.gather(*requests), strict=True))
        densities = [found for answer in answers.values() if (found := answer.held.density) is not None]

        def answer(url: str) -> BringAnswer:
            return answers[self._agents[url]]

        def same_bytes(url: str, info: EngineInfo) -> bool | None:
            agent = self._agents[url]
            return dict(zip(serves[agent], answers[agent].same_bytes, strict=False)).get(serving_of(info))

        return Brought(
            put=lambda url, engine, _: engine.update_weights(answer(url).held.path, item.name, flush_cache=True),
            same_bytes=same_bytes,
            num_bytes=sum(answer.held.num_bytes for answer in answers.values()),
            density=max(densities, default=None),
        )
