"""Claims: a disk-delta of a step at learning rate 1e-6 is at most 1 % of the model; rebuilding it takes at most four
times as long as copying the weights file; generation pauses for less than a hundredth of a step.

SmolLM2-135M in bfloat16 from float32 masters, all weights trained by the repository's trainer with AdamW: GRPO steps on
episodes sampled from the embedded engine, which each version is then installed on, by every transfer in turn.
Weights of a model that was trained for long lie anywhere between two bfloat16 numbers; those of a model just loaded lie
exactly on one, and small steps change few of them. So the masters are first spread at random within their rounding
(which changes no published weight); `--loaded` leaves them as they are. Prints one JSON object a transfer and rate, and
one of rebuilding against copying, both synced to the disk, in turn on the same files.
Run: `python benchmarks/weight_updates.py [--home .ratchet] [--steps 3] [--rates 1e-6 1e-5] [--transfers full delta …]`.
The transfer peer needs requirements-peer.txt.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_workers.contracts.checkpoints import MODEL
from gpu_workers.contracts.groups import EpisodeTokens, encode_group
from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled, Sampling
from gpu_workers.contracts.runspec import parse_run_spec
from gpu_workers.contracts.seams import GenerateRequest, TrainGroup, WeightTransfer
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.contracts.tasks import Message
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.models import smollm2
from gpu_workers.models.folder import WEIGHTS, read_description
from gpu_workers.sessions.chat import load_template
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.checkpoints import WeightsManifest
from gpu_workers.weights.broadcast import BroadcastTransfer
from gpu_workers.weights.delta.encode import copy_durably
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.publisher import DeltaPublisher
from gpu_workers.weights.delta.transfer import DeltaTransfer
from gpu_workers.weights.full import FullTransfer
from gpu_workers.weights.peer.transfer import PeerTransfer
from gpu_workers.weights.sender import close_kept

ROOT = Path(__file__).resolve().parents[1]
SIZE_AIM, COPY_AIM, PAUSE_AIM = 0.01, 4.0, 0.01
GROUP_SIZE, NEW_TOKENS = 4, 32
QUESTIONS = ("How many legs do three spiders and two cats have?", "Name a river, and the sea that it ends in.")
START_SECONDS = 300

Fleet = list[tuple[str, SGLangEngine]]
# A transfer takes the version that was published for it: see `Site.published`.
TRANSFERS: dict[str, Callable[[Fleet, ObjectStore, Path, Path], WeightTransfer]] = {
    "full": lambda fleet, store, cache, base: FullTransfer(fleet, store, cache),
    "delta": lambda fleet, store, cache, base: DeltaTransfer(fleet, store, cache),
    "broadcast": lambda fleet, store, cache, base: BroadcastTransfer(
        fleet, store, cache, base=base, address="127.0.0.1"
    ),
    "peer": lambda fleet, store, cache, base: PeerTransfer(fleet, store, cache),
}
DEFAULT = [name for name in TRANSFERS if name != "peer" or importlib.util.find_spec("mooncake")]


@contextmanager
def engine(folder: Path, log: Path) -> Iterator[str]:
    """URL of an embedded engine in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gpu_workers.engines.embedded", "--model", str(folder), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


async def until_ready(client: SGLangEngine, log: Path) -> None:
    limit = time.monotonic() + START_SECONDS
    while not await client.healthy():
        if time.monotonic() > limit:
            raise SystemExit(f"the engine did not start:\n{log.read_text()}")
        await asyncio.sleep(0.2)


def spread(trainer: PolicyTrainer, seed: int) -> None:
    """Masters anywhere within the rounding of the bfloat16 number that they are published as."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainer.policy.parameters.values():  # type: ignore[attr-defined]
            rounded = parameter.bfloat16()
            ulp = ((rounded.view(torch.int16) + 1).view(torch.bfloat16).float() - rounded.float()).abs()
            moved = rounded.float() + (torch.rand(parameter.shape, generator=generator) - 0.5) * ulp
            parameter.copy_(torch.where(moved.bfloat16() == rounded, moved, parameter))


@dataclass
class Site:
    """One run: trainer, store, engine."""

    home: Path
    root: Path
    rate: float
    run: str
    loaded: bool
    store: ObjectStore = field(init=False)

    def __post_init__(self) -> None:
        self.folder = smollm2.prepare(self.home)
        self.store = ObjectStore(f"file://{self.root / 'store'}")
        spec = parse_run_spec(
            {
                "suite": "bench", "policy": smollm2.NAME, "steps": 100,
                "trainer": {"update": "full", "compute_dtype": "bfloat16"},
                "optimiser": {"learning_rate": self.rate, "warmup_steps": 0},
                "rollout": {"group_size": GROUP_SIZE, "max_new_tokens": NEW_TOKENS},
            }
        )  # fmt: skip
        base = BaseModel(smollm2.NAME, self.folder, read_description(self.folder).fingerprint)
        self.trainer = PolicyTrainer(spec, base, run_id=self.run)
        if not self.loaded:
            spread(self.trainer, seed=0)
        self.publisher = DeltaPublisher(self.root / "work", snapshot_every=1000)
        self.template = load_template(self.folder)

    async def sample(self, client: SGLangEngine) -> list[TrainGroup]:
        """Groups of episodes; the reward is the share of spaces, which differs between episodes and can be learnt."""
        groups = []
        for number, question in enumerate(QUESTIONS):
            prompt = self.template.render_prompt([Message(role="user", content=question)])
            jobs = [
                client.generate(GenerateRequest(prompt, Sampling(max_new_tokens=NEW_TOKENS, seed=index)))
                for index in range(GROUP_SIZE)
            ]
            members = []
            for result in await asyncio.gather(*jobs):
                blank, ids = len(prompt), result.output_ids
                text = self.template.decode(ids)
                members.append(
                    EpisodeTokens(
                        np.array([*prompt, *ids], np.int32),
                        np.array([0] * blank + [1] * len(ids), np.uint8),
                        np.array([0.0] * blank + result.logprobs, np.float32),
                        np.array([-1] * blank + [0] * len(ids), np.int32),
                        text.count(" ") / max(len(text), 1),
                    )
                )
            groups.append(TrainGroup(f"g{self.trainer.version}-{number}", 0, encode_group(members, {})))
        return groups

    def publish(self) -> dict[str, Any]:
        """The present version for every transfer: as a whole and as a link of a chain."""
        version = self.trainer.version
        saved = self.root / f"saved-{version}"
        sha256 = self.trainer.policy.export(saved, smollm2.NAME)
        name, chained = self.trainer.adapter_name, f"runs/{self.run}/v{version:06d}"
        told = WeightsManifest(
            name=name, version=version, sha256=sha256, base_fingerprint=self.trainer.base.fingerprint
        )
        started = time.perf_counter()
        self.store.put_folder(f"whole/{self.run}/v{version:06d}", saved / MODEL)
        whole_seconds = time.perf_counter() - started
        started = time.perf_counter()
        manifest = self.publisher.seal(saved / MODEL, told, chained)
        self.store.put_folder(chained, saved / MODEL)
        delta_seconds = time.perf_counter() - started
        shutil.rmtree(saved)
        items = {
            "full": AdapterInstall(name=name, uri=f"whole/{self.run}/v{version:06d}", sha256=sha256, version=version),
            "delta": AdapterInstall(name=name, uri=chained, sha256=sha256, version=version),
        }
        return {"items": items, "full": whole_seconds, "delta": delta_seconds, "manifest": manifest}


async def run_rate(site: Site, url: str, log: Path, steps: int, names: list[str]) -> list[dict[str, Any]]:
    client = SGLangEngine(url)
    await until_ready(client, log)
    transfers = {
        name: TRANSFERS[name]([(url, client)], site.store, site.root / "cache" / name, site.folder) for name in names
    }
    fingerprint = site.trainer.base.fingerprint
    rows: dict[str, list[dict[str, float | None]]] = {name: [] for name in names}
    site.publish()
    copies: list[tuple[float, float]] = []
    keeper = CheckpointKeeper(site.store, site.root / "keeper")
    for step in range(steps + 1):
        groups = await site.sample(client)
        started = time.perf_counter()
        metrics, skipped = site.trainer.step(f"b{step}", groups)
        step_seconds = time.perf_counter() - started
        assert not skipped and not metrics["train/skipped_updates"], (skipped, metrics)
        published = site.publish()
        wanted = published["items"]["delta"]
        if step:
            copies.append(against_copy(keeper, Wanted(name=wanted.name, uri=wanted.uri, sha256=wanted.sha256), site))
        else:  # caches are filled and buffers touched
            keeper.bring(Wanted(name=wanted.name, uri=wanted.uri, sha256=wanted.sha256))
        for name, transfer in transfers.items():
            item = published["items"].get(name, published["items"]["full"])
            await client.update_weights(str(site.folder), "default")
            report = await transfer.install([item], [], base_fingerprint=fingerprint)
            if step:
                rows[name].append(row(report, published.get(name), step_seconds, published["manifest"].num_bytes))
        assert (await client.info()).weight_version == wanted.name
    await client.close()
    found = [summary(name, site, values) for name, values in rows.items()]
    return [*found, copy_row(site, copies)]


def against_copy(keeper: CheckpointKeeper, wanted: Wanted, site: Site) -> tuple[float, float]:
    """Seconds to rebuild, and to copy the file that came out of it."""
    started = time.perf_counter()
    held = keeper.bring(wanted)
    rebuilt = time.perf_counter() - started
    started = time.perf_counter()
    copy_durably(Path(held.path) / WEIGHTS, site.root / "copy")
    return rebuilt, time.perf_counter() - started


def row(
    report: PolicyInstalled, publish_seconds: Any, step_seconds: float, model_bytes: int
) -> dict[str, float | None]:
    assert report.ok, report.message
    return {
        "bytes": report.num_bytes,
        "share_of_model": report.num_bytes / model_bytes,
        "density": report.density,
        "publish_seconds": publish_seconds,
        "install_seconds": report.duration_seconds,
        "pause_seconds": report.pause_seconds,
        "step_seconds": step_seconds,
        "pause_of_step": None if report.pause_seconds is None else report.pause_seconds / step_seconds,
    }


def summary(name: str, site: Site, values: list[dict[str, float | None]]) -> dict[str, Any]:
    """Medians over the steps."""
    middle: dict[str, Any] = {}
    for key in values[0]:
        found = [value[key] for value in values if value[key] is not None]
        middle[key] = float(f"{statistics.median(found):.4g}") if found else None  # type: ignore[type-var]
    told = {"transfer": name, "learning_rate": site.rate, "masters": "loaded" if site.loaded else "spread"}
    aims = {"pause": middle["pause_of_step"] is None or middle["pause_of_step"] <= PAUSE_AIM}
    if name == "delta" and site.rate <= 1e-6:
        aims["size"] = middle["share_of_model"] <= SIZE_AIM
    return told | middle | {"steps": len(values), "load": round(os.getloadavg()[0], 1), "aims": aims}


def copy_row(site: Site, copies: list[tuple[float, float]]) -> dict[str, Any]:
    rebuilt, copied = (statistics.median(side) for side in zip(*copies, strict=True))
    return {
        "rebuild_against_copy": round(rebuilt / copied, 2),
        "learning_rate": site.rate,
        "rebuild_seconds": [round(pair[0], 3) for pair in copies],
        "copy_seconds": [round(pair[1], 3) for pair in copies],
        "load": round(os.getloadavg()[0], 1),
        "aims": {"speed": rebuilt <= COPY_AIM * copied},
    }


def main() -> int:
    """Run every rate and print the rows; exit code 1 when an aim is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=ROOT / ".ratchet")
    parser.add_argument("--steps", type=int, default=3, help="measured ones; one more comes before")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 1e-5])
    parser.add_argument("--transfers", nargs="+", choices=sorted(TRANSFERS), default=DEFAULT)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loaded", action="store_true", help="masters as they are in a model just loaded")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    holds = True
    for number, rate in enumerate(options.rates):
        with tempfile.TemporaryDirectory(prefix="ratchet-updates-") as name:
            root = Path(name)
            site = Site(options.home.resolve(), root, rate, f"bench{number}", options.loaded)
            with engine(site.folder, root / "engine.log") as url:
                work = run_rate(site, url, root / "engine.log", options.steps, options.transfers)
                for line in asyncio.run(work):
                    print(json.dumps(line), flush=True)
                    holds &= all(line["aims"].values())
    close_kept()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
