"""Mounts of role workspace: the files of a data root that are copied into an episode's workspace before it starts."""

import os
from collections.abc import Iterator
from pathlib import Path

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import WORKSPACE, EnvironmentContract, MountRole
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.history import HistoryError, cut_histories
from gpu_workers.sandboxes.host import HostPolicy
from gpu_workers.sandboxes.snapshot import read_folder

BATCH_BYTES = 8 * 2**20


def copied_files(contract: EnvironmentContract, host: HostPolicy) -> dict[str, bytes]:
    """Path below the workspace -> bytes. Raises WorkerError(ENVIRONMENT) where a source is not all plain files.

    A contract's own files win over copies. Git repositories end at their HEAD.
    """
    found: dict[str, bytes] = {}
    for index, mount in enumerate(contract.visible_mounts()):
        if mount.role is not MountRole.WORKSPACE:
            continue
        below = mount.path.removeprefix(WORKSPACE).lstrip("/")
        for path, data in _read(host.resolve(mount), contract.limits.disk_bytes, f"mounts[{index}]"):
            found["/".join(filter(None, (below, path)))] = data
    try:
        found = cut_histories(found)
    except HistoryError as error:
        raise _refused("mounts", str(error)) from error
    if sum(map(len, found.values())) > contract.limits.disk_bytes:
        raise _refused("mounts", f"they do not fit into limits.disk_bytes {contract.limits.disk_bytes}")
    return found


def batches(files: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """The same files in portions that one request holds."""
    batch: dict[str, bytes] = {}
    size = 0
    for path, data in files.items():
        if batch and size + len(data) > BATCH_BYTES:
            yield batch
            batch, size = {}, 0
        batch[path] = data
        size += len(data)
    if batch:
        yield batch


def _read(source: Path, max_bytes: int, where: str) -> Iterator[tuple[str, bytes]]:
    if source.is_file():
        if source.stat().st_size > max_bytes:
            raise _refused(where, f"{source.name} does not fit into limits.disk_bytes {max_bytes}")
        yield source.name, source.read_bytes()
        return
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        snapshot = read_folder(fd, max_bytes)
    finally:
        os.close(fd)
    if snapshot.refused:
        raise _refused(where, f"its source cannot be copied: {snapshot.refused[0]}")
    yield from snapshot.files.items()


def _refused(where: str, problem: str) -> WorkerError:
    return WorkerError(Boundary.ENVIRONMENT, f"contract.{where}: {problem}", retryable=False)
