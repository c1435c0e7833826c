"""Checkpoints: the folder of one policy version (`contracts.checkpoints`), whole and exact or refused.

No pickle anywhere: a checkpoint comes from a shared store.
"""

import base64
import hashlib
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from gpu_workers.contracts.checkpoints import FORMAT_VERSION, MANIFEST, STATE, TRAINER, Identity, Manifest
from gpu_workers.trainer.world import ALONE, World


class CheckpointError(RuntimeError):
    """A checkpoint that is torn, damaged or belongs to something else. Starting from it is refused."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is torn, cut short or gone, and belongs where it is: an older one leads to the same bytes."""


class WeightsManifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json of adapter/ or model/. `name` is the version's name on every engine."""

    name: str
    version: int
    sha256: str
    base_fingerprint: str


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """state/trainer.json: everything of an exact resume that is not a tensor."""

    version: int
    batch_ids: list[str]
    group_ids: list[list[str]] = []  # of each batch, in the order trained on; none of supervised ones
    num_updates: int
    num_skipped_updates: int
    random_states: dict[str, Any]


def capture_random_states() -> dict[str, Any]:
    """States of the torch, numpy and Python generators as JSON values."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), gauss_next],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Inverse of `capture_random_states`."""
    torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(states["torch"])), dtype=torch.uint8))
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = states["python"]
    random.setstate((version, tuple(internal), gauss_next))


def write_trainer(folder: Path, state: TrainerState) -> None:
    """Write state/trainer.json."""
    target = folder / STATE
    target.mkdir(parents=True, exist_ok=True)
    (target / TRAINER).write_bytes(msgspec.json.encode(state))


def seal(folder: Path, identity: Identity, world: World = ALONE) -> None:
    """Write manifest.json over everything that lies in the ranks' folders; collective, rank 0 writes."""
    files: dict[str, str] = {}
    for found in world.gather(_digests(folder)):
        files |= found
    if not world.is_main:
        return
    manifest = Manifest(format=FORMAT_VERSION, identity=identity, files=dict(sorted(files.items())))
    _write_manifest(folder, manifest)


def seal_again(folder: Path, part: str) -> None:
    """Write manifest.json anew after the files below `part` have changed; rank 0."""
    manifest = read_manifest(folder)
    files = {name: digest for name, digest in manifest.files.items() if not name.startswith(f"{part}/")}
    files |= {f"{part}/{name}": digest for name, digest in _digests(folder / part, everything=True).items()}
    sealed = msgspec.structs.replace(manifest, files=dict(sorted(files.items())))
    _write_manifest(folder, sealed)


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    sealed = msgspec.structs.replace(manifest, digest=_digest_of(msgspec.to_builtins(manifest)))
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(sealed)))


def _digest_of(stored: dict[str, Any]) -> str:
    """Of a manifest as it was stored, whatever fields later versions add."""
    rest = {name: value for name, value in stored.items() if name != "digest"}
    return hashlib.sha256(msgspec.json.encode(rest, order="sorted")).hexdigest()


def read_weights_manifest(folder: Path) -> WeightsManifest:
    """Of adapter/ or model/, as `PolicyTrainer.save` has just written it."""
    return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=WeightsManifest)


def _digests(folder: Path, *, everything: bool = False) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): _sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (everything or path != folder / MANIFEST)
    }


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder. Raises CheckpointError when the folder is incomplete."""
    try:
        data = (folder / MANIFEST).read_bytes()
        manifest = msgspec.json.decode(data, type=Manifest)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(
            f"{folder} is not a complete checkpoint (no {MANIFEST}): resume from an older one"
        ) from error
    except msgspec.DecodeError as error:
        raise DamagedCheckpoint(
            f"{folder}/{MANIFEST} cannot be read ({error}): resume from an older checkpoint"
        ) from error
    if manifest.digest and manifest.digest != _digest_of(msgspec.json.decode(data)):
        raise DamagedCheckpoint(f"{folder}/{MANIFEST} is damaged (SHA-256 differs): resume from an older checkpoint")
    if manifest.format != FORMAT_VERSION:
        raise CheckpointError(
            f"{folder}/{MANIFEST} has format {manifest.format}, this trainer resumes {FORMAT_VERSION}: retry the run, "
            "which trains it anew, or let the build that wrote it finish"
        )
    return manifest


def check_folder(folder: Path, *, spec_hash: str = "", base_fingerprint: str = "", part: str = "") -> Manifest:
    """Check every file (below `part` when given) against the manifest, and whose checkpoint it is."""
    manifest = read_manifest(folder)
    identity = manifest.identity
    if base_fingerprint and identity.base_fingerprint != base_fingerprint:
        raise CheckpointError(
            f"{folder} was trained on another base model (fingerprint {identity.base_fingerprint[:12]}…, "
            f"here {base_fingerprint[:12]}…): use the base model it names"
        )
    if spec_hash and identity.spec_hash != spec_hash:
        raise CheckpointError(
            f"{folder} belongs to another RunSpec (hash {identity.spec_hash[:12]}…, this run {spec_hash[:12]}…): "
            "a spec cannot change between attempts; submit the changed one as a new run"
        )
    for name, expected in manifest.files.items():
        if part and not name.startswith(f"{part}/"):
            continue
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpoint(f"{folder}: {name} is missing: resume from another checkpoint")
        if _sha256(path) != expected:
            raise DamagedCheckpoint(f"{folder}: {name} is damaged (SHA-256 differs): resume from another checkpoint")
    return manifest


def read_trainer(folder: Path) -> TrainerState:
    """Read state/trainer.json of a checked checkpoint."""
    try:
        return msgspec.json.decode((folder / STATE / TRAINER).read_bytes(), type=TrainerState)
    except (OSError, msgspec.DecodeError) as error:
        raise DamagedCheckpoint(f"{folder}/{STATE} cannot be read ({error}): resume from another checkpoint") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
