"""Chains of small versions in a store, and what a host keeps of them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.trainer.checkpoints import WeightsManifest
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Held, Wanted
from gpu_workers.weights.delta.manifest import MANIFEST
from gpu_workers.weights.delta.publisher import DeltaPublisher

FINGERPRINT = "b" * 64
ROWS, COLUMNS = 64, 32


def weights(seed: int, *, steps: int = 0, share: float = 0.02) -> dict[str, torch.Tensor]:
    """Tensors of a run's first version, or after so many steps that each change some elements."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "embedding": torch.randn(ROWS, COLUMNS, generator=generator).bfloat16(),
        "layer.weight": torch.randn(COLUMNS, COLUMNS, generator=generator),
        "norm": torch.ones(COLUMNS),
    }
    for _ in range(steps):
        for name in ("embedding", "layer.weight"):
            mask = torch.rand(tensors[name].shape, generator=generator) < share
            tensors[name] = torch.where(mask, tensors[name] * 1.5 + 0.25, tensors[name])
    return tensors


def save_model(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "small"}\n')
    (folder / "tokenizer.json").write_text("{}\n")
    return folder


@dataclass
class Chain:
    """One attempt's published versions in a store."""

    root: Path
    store: ObjectStore
    snapshot_every: int = 100
    attempt: int = 1
    seed: int = 0
    versions: dict[int, Wanted] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)  # SHA-256 of the weights file of each version

    def __post_init__(self) -> None:
        self.publisher = DeltaPublisher(self.root / f"chain-{self.attempt}", self.snapshot_every)

    def publish(self, version: int, tensors: dict[str, torch.Tensor] | None = None) -> Wanted:
        folder = save_model(self.root / f"saved-{self.attempt}-{version}", tensors or weights(self.seed, steps=version))
        return self.publish_folder(folder, version)

    def publish_folder(self, folder: Path, version: int) -> Wanted:
        digest, key = file_sha256(folder / WEIGHTS), self.key(version)
        name = f"run-r.a{self.attempt}@v{version}"
        told = WeightsManifest(name=name, version=version, sha256=digest, base_fingerprint=FINGERPRINT)
        self.publisher.seal(folder, told, key)
        self.store.put_folder(key, folder)
        self.digests[version] = digest
        self.versions[version] = Wanted(name=name, uri=key, sha256=digest, base_fingerprint=FINGERPRINT)
        return self.versions[version]

    def key(self, version: int) -> str:
        return f"runs/r/a{self.attempt}/v{version:06d}/model"

    def file(self, version: int, name: str) -> Path:
        return Path(self.store.path(f"{self.key(version)}/{name}"))

    def edit_manifest(self, version: int, **changes: Any) -> None:
        """Top-level fields, or with a name like `delta__sha256` fields inside."""
        path = self.file(version, MANIFEST)
        told = json.loads(path.read_text())
        for name, value in changes.items():
            *outer, last = name.split("__")
            place = told
            for part in outer:
                place = place[part]
            place[last] = value
        path.write_text(json.dumps(told))


def make_chain(root: Path, *versions: int, **options: Any) -> Chain:
    chain = Chain(root, ObjectStore(f"file://{root / 'store'}"), **options)
    for version in versions:
        chain.publish(version)
    return chain


def served(keeper: CheckpointKeeper) -> str:
    """SHA-256 of the weights file that the marker names; empty where there is none."""
    marker = keeper.current()
    return file_sha256(keeper.local.folder(marker) / WEIGHTS) if marker else ""


def check_whole(held: Held, digest: str) -> None:
    folder = Path(held.path)
    assert file_sha256(folder / WEIGHTS) == digest == held.sha256
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "small"}
    assert (folder / "tokenizer.json").read_text() == "{}\n"
