"""One fleet job: connect to every engine, install and retire, and say how it went."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from gpu_workers.contracts.messages import AdapterInstall, FleetJob, PolicyInstalled
from gpu_workers.contracts.seams import WeightTransfer, WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.transfers import Topology, Transfer, TransferError, resolve_transfer
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.weights.adapter import AdapterTransfer, InstallError
from gpu_workers.weights.base import published_base
from gpu_workers.weights.broadcast import BroadcastTransfer
from gpu_workers.weights.delta.transfer import DeltaTransfer
from gpu_workers.weights.full import FullTransfer
from gpu_workers.weights.peer.transfer import PeerTransfer

_HERE = ("127.0.0.1", "localhost", "::1")


async def install_on_fleet(
    job: FleetJob,
    store: ObjectStore,
    models_dir: Path,
    cache_dir: Path,
    engine_urls: Sequence[str],
    *,
    agents: Mapping[str, str] | None = None,
    agent_secret: str = "",
    address: str = "127.0.0.1",
    collective: bool = False,
) -> PolicyInstalled:
    """The report of a job; a failure is data (`ok` False with the reason), never half a success.

    `agents` maps engine URLs to the agents that keep their checkpoints, for transfers that need one. `address` is this
    host's, as engines and agents reach it; `collective` declares that engines can form a process group with it.
    """
    started = time.monotonic()
    engines = [(url, SGLangEngine(url)) for url in engine_urls]
    try:
        base = models_dir / job.base_model
        kind = resolve_transfer(job.transfer, topology_of(engine_urls, agents or {}, store, collective=collective))
        transfer = _make_transfer(kind, engines, store, cache_dir, base, agents or {}, agent_secret, address)
        fingerprint = _fingerprint(base)
        install = await asyncio.to_thread(_located, job, store, base, cache_dir)
        report = await transfer.install(install, job.retire, base_fingerprint=fingerprint)
        report.transfer = str(kind)
    except (WorkerError, TransferError) as error:
        report = PolicyInstalled(
            job_id="",
            ok=False,
            message=str(error),
            engines=list(engine_urls),
            duration_seconds=time.monotonic() - started,
        )
    finally:
        for _, engine in engines:
            await engine.close()
    report.job_id = job.job_id
    return report


def topology_of(
    engine_urls: Sequence[str], agents: Mapping[str, str], store: ObjectStore, *, collective: bool
) -> Topology:
    """What the settings of this host say of it and of the engines."""
    return Topology(
        on_other_hosts=any(urlsplit(url).hostname not in _HERE for url in engine_urls),
        has_agents=bool(engine_urls) and all(url in agents for url in engine_urls),
        shared_store=store.is_local,
        collective=collective,
    )


def _located(job: FleetJob, store: ObjectStore, base: Path, cache: Path) -> list[AdapterInstall]:
    """Where the weights of whole models are. Raises InstallError."""
    if job.transfer is Transfer.ADAPTER:
        return job.install
    return [item if item.uri else published_base(store, base, cache, item) for item in job.install]


def _make_transfer(
    kind: Transfer,
    engines: Sequence[tuple[str, SGLangEngine]],
    store: ObjectStore,
    cache: Path,
    base: Path,
    agents: Mapping[str, str],
    secret: str,
    address: str,
) -> WeightTransfer:
    if kind is Transfer.DELTA:
        return DeltaTransfer(engines, store, cache, agents=agents, secret=secret)
    if kind is Transfer.BROADCAST:
        return BroadcastTransfer(engines, store, cache, base=base, address=address)
    if kind is Transfer.PEER:
        return PeerTransfer(engines, store, cache, agents=agents, secret=secret, address=address)
    if kind is Transfer.FULL:
        return FullTransfer(engines, store, cache)
    return AdapterTransfer(engines, store, cache)


def _fingerprint(folder: Path) -> str:
    """Of the base model on this host; empty where it is not here (the engines' word is then not compared)."""
    description = folder / "ratchet_model.json"
    if not description.is_file():
        return ""
    try:
        return str(json.loads(description.read_text())["fingerprint"])
    except (ValueError, KeyError) as error:
        raise InstallError(f"{description} cannot be read ({error}): prepare the base model again") from error
