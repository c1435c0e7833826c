"""Publishing: a policy version becomes a durable folder in the object store, and old optimiser states make room."""

import shutil
import tempfile
import weakref
from pathlib import Path

from gpu_workers.contracts import checkpoints as layout
from gpu_workers.contracts.seams import Published, TrainerBackend
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.trainer import checkpoints
from gpu_workers.trainer.world import ALONE, World
from gpu_workers.weights.delta.publisher import DeltaPublisher

KEEP_STATES = 4


class CheckpointPublisher:
    """Saves versions of one attempt below runs/<run>/a<attempt>/. Folders are complete once their manifest is there.

    Where every weight is trained, model/ holds the whole model in the first version and then in every
    `snapshot_every`-th and the last, and in all but the first what changed since the version before (`weights.delta`).
    Work in progress lies below `work`, which is this run's alone; what a killed attempt left there is removed.
    """

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        attempt: int,
        world: World = ALONE,
        *,
        work: Path | None = None,
        snapshot_every: int = 1,
    ) -> None:
        self._world = world
        self._store, self._run_id, self._attempt = store, run_id, attempt
        self._with_state: list[str] = []
        self._work = work if work is not None else _temporary(self)
        if world.is_main:  # before any step, and so before any other rank works there
            shutil.rmtree(self._work, ignore_errors=True)
        self._snapshot_every = snapshot_every
        self._deltas: DeltaPublisher | None = None

    def publish(self, backend: TrainerBackend, *, last: bool = False) -> Published:
        """Save the backend's present version and return where it is; collective, rank 0 writes."""
        key = layout.version_key(self._run_id, self._attempt, backend.version)
        weights, _, _ = backend.weights_file.rpartition("/")
        self._work.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=self._work))
        try:
            backend.save(folder)
            if not self._world.is_main:
                self._store.put_folder(key, folder)
            self._world.gather(True)  # every rank's shards are there before the manifest says so
            if not self._world.is_main:
                return Published(backend.version, key, f"{key}/{weights}", sha256="", num_bytes=0)
            sha256 = checkpoints.read_manifest(folder).files[backend.weights_file]
            num_bytes = (folder / backend.weights_file).stat().st_size
            if weights == layout.MODEL:
                self._seal_model(folder, key, whole=last)
            self._store.put_folder(key, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._drop_old_states(key)
        return Published(
            version=backend.version,
            checkpoint=key,
            adapter=f"{key}/{weights}",
            sha256=sha256,
            num_bytes=num_bytes,
        )

    def _seal_model(self, folder: Path, key: str, *, whole: bool) -> None:
        """model/ as the next link of this attempt's chain."""
        if self._deltas is None:
            self._deltas = DeltaPublisher(self._work / f"a{self._attempt}", self._snapshot_every)
        model = folder / layout.MODEL
        told = checkpoints.read_weights_manifest(model)
        self._deltas.seal(model, told, f"{key}/{layout.MODEL}", whole=whole)
        checkpoints.seal_again(folder, layout.MODEL)

    def _drop_old_states(self, key: str) -> None:
        """What engines load of every version stays; of the large states only the newest can still be resumed from."""
        self._with_state.append(key)
        while len(self._with_state) > KEEP_STATES:
            path = self._store.path(f"{self._with_state.pop(0)}/{layout.STATE}")
            if self._store.fs.exists(path):
                self._store.fs.rm(path, recursive=True)


def _temporary(owner: object) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ratchet-publishing-"))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder
