"""Checkpoints in the object store that a dead trainer made durable but did not live to report."""

from dataclasses import dataclass

import msgspec

from apps.runs.models import Run, RunAttempt
from gpu_workers.contracts.checkpoints import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    MANIFEST,
    MODEL,
    STATE,
    TRAINER,
    Manifest,
    attempt_key,
    read_key,
    version_key,
)
from gpu_workers.contracts.store import StoreError
from ratchet.store import get_store

DAMAGED = "damaged_checkpoint"  # code of a trainer that cannot read what it was told to resume from
_WEIGHTS = f"{ADAPTER}/{ADAPTER_WEIGHTS}"


class _Model(msgspec.Struct, frozen=True):
    """What is read of the manifest of whole weights."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class DurableVersion:
    """A complete checkpoint folder: `adapter` is the key of its PEFT folder, or of its model's."""

    attempt: int
    version: int
    adapter: str
    sha256: str
    num_bytes: int


def find_unreported(run: Run, previous: RunAttempt) -> str:
    """Key of the newest complete checkpoint of the attempt that just ended, if it is newer than what was reported.

    Only that attempt's own folder counts: an older one could still be written to by a zombie.
    """
    damaged = set(run.attempts.filter(ended_code=DAMAGED).values_list("resume_from", flat=True))
    for version in sorted(_versions_of(run, previous.number), reverse=True):
        key = version_key(str(run.id), previous.number, version)
        if version > run.version and key not in damaged and _is_complete(key):
            return key
    # It may itself have been told to take over an unreported one, and died before it could say so.
    key = previous.resume_from
    return key if previous.resumed_version is None and key not in damaged and _version(key) > run.version else ""


def unreported_until(run: Run, attempt: int, version: int) -> list[str]:
    """Keys of complete checkpoints up to a version that is known to be durable, of which nobody heard; oldest first.

    Reports of a dead attempt are refused, and may be overtaken by those of later versions. Where attempts up to the
    given one made the same version, the newest attempt's is what the later versions go back to.
    """
    missing = set(range(1, version + 1)) - set(run.checkpoints.values_list("version", flat=True))
    found: dict[int, str] = {}
    for number in range(attempt, 0, -1):
        for one in missing.intersection(_versions_of(run, number)) - found.keys() if missing else ():
            key = version_key(str(run.id), number, one)
            if _is_complete(key):
                found[one] = key
    return [found[one] for one in sorted(found)]


def attempt_of(key: str) -> int:
    """Number of the attempt that wrote the checkpoint."""
    attempt, _ = read_key(key) or (0, 0)
    return attempt


def _versions_of(run: Run, attempt: int) -> list[int]:
    store, folder = get_store(), attempt_key(str(run.id), attempt)
    try:
        paths = store.fs.ls(store.path(folder), detail=False)
    except FileNotFoundError:
        return []
    return [version for path in paths if (version := _version(f"{folder}/{path.rpartition('/')[2]}"))]


def _version(key: str) -> int:
    _, version = read_key(key) or (0, 0)
    return version


def _is_complete(key: str) -> bool:
    return get_store().exists(f"{key}/{MANIFEST}")


def can_resume(key: str) -> bool:
    """Whether the folder is complete and still has its state: of old versions only what engines load is kept."""
    return _is_complete(key) and get_store().exists(f"{key}/{STATE}/{TRAINER}")


def read(key: str) -> DurableVersion | None:
    """What a complete checkpoint folder says of itself; None where there is none."""
    store = get_store()
    try:
        manifest = msgspec.json.decode(store.get(f"{key}/{MANIFEST}"), type=Manifest)
        whole = _WEIGHTS not in manifest.files
        if whole:  # its own manifest speaks of the weights, stored whole or not
            model = msgspec.json.decode(store.get(f"{key}/{MODEL}/{MANIFEST}"), type=_Model)
            sha256, num_bytes = model.sha256, model.num_bytes
        else:
            sha256 = manifest.files[_WEIGHTS]
            num_bytes = int(store.fs.size(store.path(f"{key}/{_WEIGHTS}")) or 0)
        return DurableVersion(
            attempt=manifest.identity.attempt,
            version=manifest.identity.version,
            adapter=f"{key}/{MODEL if whole else ADAPTER}",
            sha256=sha256,
            num_bytes=num_bytes,
        )
    except (StoreError, FileNotFoundError, msgspec.DecodeError):
        return None
