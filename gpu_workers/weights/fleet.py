"""One fleet job: connect to every engine, install and retire, and say how it went."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpu_workers.contracts.messages import FleetJob, PolicyInstalled, Transfer
from gpu_workers.contracts.seams import RolloutEngine, WeightTransfer, WorkerError
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.weights.adapter import AdapterTransfer, InstallError
from gpu_workers.weights.delta.transfer import DeltaTransfer
from gpu_workers.weights.full import FullTransfer

_TRANSFERS: dict[Transfer, Callable[..., WeightTransfer]] = {
    Transfer.ADAPTER: AdapterTransfer,
    Transfer.FULL: FullTransfer,
}


async def install_on_fleet(
    job: FleetJob,
    store: ObjectStore,
    models_dir: Path,
    cache_dir: Path,
    engine_urls: Sequence[str],
    *,
    agents: Mapping[str, str] | None = None,
    agent_secret: str = "",
) -> PolicyInstalled:
    """The report of a job; a failure is data (`ok` False with the reason), never half a success.

    `agents` maps engine URLs to the agents that keep their checkpoints, for transfers that need one.
    """
    started = time.monotonic()
    engines: list[tuple[str, RolloutEngine]] = [(url, SGLangEngine(url)) for url in engine_urls]
    try:
        transfer: WeightTransfer
        if job.transfer is Transfer.DELTA:
            transfer = DeltaTransfer(engines, store, cache_dir, agents=agents, secret=agent_secret)
        else:
            transfer = _TRANSFERS[job.transfer](engines, store, cache_dir)
        fingerprint = _fingerprint(models_dir / job.base_model)
        report = await transfer.install(job.install, job.retire, base_fingerprint=fingerprint)
    except WorkerError as error:
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


def _fingerprint(folder: Path) -> str:
    """Of the base model on this host; empty where it is not here (the engines' word is then not compared)."""
    description = folder / "ratchet_model.json"
    if not description.is_file():
        return ""
    try:
        return str(json.loads(description.read_text())["fingerprint"])
    except (ValueError, KeyError) as error:
        raise InstallError(f"{description} cannot be read ({error}): prepare the base model again") from error
