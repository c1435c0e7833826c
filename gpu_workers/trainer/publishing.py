"""Publishing: a policy version becomes a durable folder in the object store, and old optimiser states make room."""

import shutil
import tempfile
from pathlib import Path

from gpu_workers.contracts.seams import Published, TrainerBackend
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.world import ALONE, World

KEEP_STATES = 4


class CheckpointPublisher:
    """Saves versions of one attempt below runs/<run>/a<attempt>/. Folders are complete once their manifest is there."""

    def __init__(self, store: ObjectStore, run_id: str, attempt: int, world: World = ALONE) -> None:
        self._world = world
        self._store, self._run_id, self._attempt = store, run_id, attempt
        self._with_state: list[str] = []

    def publish(self, backend: TrainerBackend) -> Published:
        """Save the backend's present version and return where it is; collective, rank 0 writes."""
        key = checkpoints.version_key(self._run_id, self._attempt, backend.version)
        weights, _, _ = backend.weights_file.rpartition("/")
        folder = Path(tempfile.mkdtemp(prefix="ratchet-checkpoint-"))
        try:
            backend.save(folder)
            if not self._world.is_main:
                self._store.put_folder(key, folder)
            self._world.gather(True)  # every rank's shards are there before the manifest says so
            if not self._world.is_main:
                return Published(backend.version, key, f"{key}/{weights}", sha256="", num_bytes=0)
            manifest = checkpoints.read_manifest(folder)
            self._store.put_folder(key, folder)
            num_bytes = (folder / backend.weights_file).stat().st_size
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._drop_old_states(key)
        return Published(
            version=backend.version,
            checkpoint=key,
            adapter=f"{key}/{weights}",
            sha256=manifest.files[backend.weights_file],
            num_bytes=num_bytes,
        )

    def _drop_old_states(self, key: str) -> None:
        """Adapters of every version stay; of the large states only the newest few can still be resumed from."""
        self._with_state.append(key)
        while len(self._with_state) > KEEP_STATES:
            path = self._store.path(f"{self._with_state.pop(0)}/{checkpoints.STATE}")
            if self._store.fs.exists(path):
                self._store.fs.rm(path, recursive=True)
