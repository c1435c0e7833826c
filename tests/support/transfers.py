"""Transfers under one suite: what is published, and what the engines then hold."""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from gpu_workers.contracts.messages import AdapterInstall
from gpu_workers.contracts.seams import RolloutEngine, WeightTransfer
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS, file_sha256, read_description, write_json
from gpu_workers.trainer.checkpoints import WeightsManifest
from gpu_workers.weights.adapter import ADAPTER_FILES
from gpu_workers.weights.delta.manifest import DELTA
from gpu_workers.weights.delta.publisher import DeltaPublisher
from tests.unit.gpu_workers.engines.serving import make_adapter

_runs = itertools.count()


@dataclass
class Case:
    """A transfer to a fleet of two and its store. `full`: it replaces all weights instead of adding an adapter."""

    transfer: WeightTransfer
    store: ObjectStore
    engines: list[RolloutEngine]
    model: Path  # what the engines serve at first
    held: Callable[[], Awaitable[list[set[str]]]]
    full: bool = False
    adapter: Callable[..., Path] = make_adapter
    deltas: DeltaPublisher | None = None  # whole models are published as a chain of changes
    run: str = field(default_factory=lambda: f"r{next(_runs)}")
    _chained: bool = False

    @property
    def fingerprint(self) -> str:
        return read_description(self.model).fingerprint

    @property
    def file(self) -> str:
        if self.deltas:
            return DELTA
        return WEIGHTS if self.full else ADAPTER_FILES[1]

    def publish(self, folder: Path, version: int, *, base: str | None = None) -> AdapterInstall:
        """A folder in the store, as the trainer leaves it."""
        if self.deltas:
            return self._publish_link(folder, version, self.fingerprint if base is None else base)
        made = changed(self.model, folder, seed=version) if self.full else self.adapter(folder, seed=version)
        digest = file_sha256(made / self.file)
        name = f"run-{self.run}.a1@v{version}"
        manifest = {"name": name, "version": version, "sha256": digest}
        write_json(made / "manifest.json", manifest | {"base_fingerprint": self.fingerprint if base is None else base})
        key = f"runs/{self.run}/a1/v{version:06d}"
        self.store.put_folder(key, made)
        return AdapterInstall(name=name, uri=key, sha256=digest, version=version)

    def _publish_link(self, folder: Path, version: int, base: str) -> AdapterInstall:
        """What an engine serves at first is version 0, a snapshot; each one holds what changed since the last."""
        assert self.deltas is not None
        if not self._chained:
            self._chained = True
            self._seal(changed(self.model, folder.with_name(f"{folder.name}-0"), scale=0.0), 0, self.fingerprint)
        return self._seal(changed(self.model, folder, seed=version, scale=0.3, share=0.02), version, base)

    def _seal(self, made: Path, version: int, base: str) -> AdapterInstall:
        assert self.deltas is not None
        digest, name = file_sha256(made / WEIGHTS), f"run-{self.run}.a1@v{version}"
        key = f"runs/{self.run}/a1/v{version:06d}/model"
        told = WeightsManifest(name=name, version=version, sha256=digest, base_fingerprint=base)
        self.deltas.seal(made, told, key)
        self.store.put_folder(key, made)
        return AdapterInstall(name=name, uri=key, sha256=digest, version=version)


def changed(base: Path, folder: Path, *, seed: int = 0, scale: float = 0.02, share: float = 1.0) -> Path:
    """A copy of the model; `share` of its weights are off by noise of this part of their size."""
    folder.mkdir(parents=True)
    for file in base.iterdir():
        if file.name not in (WEIGHTS, "ratchet_model.json"):
            (folder / file.name).write_bytes(file.read_bytes())
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(base / WEIGHTS)
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std() * scale
        noise *= torch.rand(tensor.shape, generator=generator) < share
        tensors[name] = (tensor.float() + noise).to(tensor.dtype)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder
