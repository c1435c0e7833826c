"""Checkpoints in the object store that a dead trainer made durable but did not live to report."""

import re
from dataclasses import dataclass

import msgspec

from apps.runs.models import Run, RunAttempt
from gpu_workers.contracts.store import StoreError
from ratchet.store import get_store

DAMAGED = "damaged_checkpoint"  # code of a trainer that cannot read what it was told to resume from
_VERSION_FOLDER = re.compile(r"v(\d+)")
_ATTEMPT_FOLDER = re.compile(r"/a(\d+)/v\d+$")
_ADAPTER = "adapter"
_WEIGHTS = f"{_ADAPTER}/adapter_model.safetensors"
_MODEL = "model"  # instead, where every weight is trained: its own manifest speaks of the weights, stored whole or not
_STATE = "state/trainer.json"
_MANIFEST = "manifest.json"  # written last: without it a folder does not count


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
    store = get_store()
    folder = f"runs/{run.id}/a{previous.number}"
    damaged = set(run.attempts.filter(ended_code=DAMAGED).values_list("resume_from", flat=True))
    for version in sorted(_versions_in(folder), reverse=True):
        key = f"{folder}/v{version:06d}"
        if version > run.version and key not in damaged and store.exists(f"{key}/{_MANIFEST}"):
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
        folder = f"runs/{run.id}/a{number}"
        for one in missing.intersection(_versions_in(folder)) - found.keys() if missing else ():
            key = f"{folder}/v{one:06d}"
            if get_store().exists(f"{key}/{_MANIFEST}"):
                found[one] = key
    return [found[one] for one in sorted(found)]


def attempt_of(key: str) -> int:
    """Number of the attempt that wrote the checkpoint."""
    named = _ATTEMPT_FOLDER.search(key)
    return int(named[1]) if named else 0


def _versions_in(folder: str) -> list[int]:
    store = get_store()
    try:
        paths = store.fs.ls(store.path(folder), detail=False)
    except FileNotFoundError:
        return []
    return [version for path in paths if (version := _version(path))]


def _version(key: str) -> int:
    named = _VERSION_FOLDER.fullmatch(key.rpartition("/")[2])
    return int(named[1]) if named else 0


def can_resume(key: str) -> bool:
    """Whether the folder is complete and still has its state: of old versions only what engines load is kept."""
    store = get_store()
    return store.exists(f"{key}/{_MANIFEST}") and store.exists(f"{key}/{_STATE}")


def read(key: str) -> DurableVersion | None:
    """What a complete checkpoint folder says of itself; None where there is none."""
    store = get_store()
    try:
        manifest = msgspec.json.decode(store.get(f"{key}/{_MANIFEST}"))
        whole = _WEIGHTS not in manifest["files"]
        if whole:
            model = msgspec.json.decode(store.get(f"{key}/{_MODEL}/{_MANIFEST}"))
            sha256, num_bytes = str(model["sha256"]), int(model["num_bytes"])
        else:
            sha256 = str(manifest["files"][_WEIGHTS])
            num_bytes = int(store.fs.size(store.path(f"{key}/{_WEIGHTS}")) or 0)
        return DurableVersion(
            attempt=int(manifest["identity"]["attempt"]),
            version=int(manifest["identity"]["version"]),
            adapter=f"{key}/{_MODEL if whole else _ADAPTER}",
            sha256=sha256,
            num_bytes=num_bytes,
        )
    except (StoreError, FileNotFoundError, msgspec.DecodeError, KeyError):
        return None
