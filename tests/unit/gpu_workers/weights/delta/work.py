"""What a worker process does: `python -m …work`, a line of JSON in, a child forked for it, a line of JSON out.

The child counts the calls it makes, can be killed by SIGKILL at any of them, and stands still at a named place until
its parent kills it. Without torch: it starts at once.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_workers.contracts.store import ObjectStore
from gpu_workers.models.folder import WEIGHTS, file_sha256
from gpu_workers.weights.delta import apply, encode, keeping, local, publisher
from gpu_workers.weights.delta.keeping import CheckpointKeeper, Wanted
from gpu_workers.weights.delta.publisher import DeltaPublisher


def stand() -> None:
    """Until someone kills this process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def hold(place: Any, name: str, *, before: bool = True, skip: int = 0) -> None:
    """Have a function stand still at its (skip + 1)th call."""
    function, left = getattr(place, name), [skip]

    def wrapped(*args: Any, **options: Any) -> Any:
        if before and left[0] == 0:
            stand()
        result = function(*args, **options)
        if not before and left[0] == 0:
            stand()
        left[0] -= 1
        return result

    setattr(place, name, wrapped)


BARRIERS: dict[str, Callable[[], None]] = {
    # of a host that rebuilds
    "nothing written": lambda: hold(keeping, "rebuild"),
    "half written": lambda: hold(apply, "_rebuild_tensor", skip=1),
    "not checked": lambda: hold(apply, "digest_of"),
    "weights written": lambda: hold(keeping, "rebuild", before=False),
    "folder not renamed": lambda: hold(local.LocalVersions, "serve"),
    "folder renamed": lambda: hold(local.LocalVersions, "move_marker"),
    "marker moved": lambda: hold(local.LocalVersions, "move_marker", before=False),
    # of a trainer that publishes
    "delta not assembled": lambda: hold(encode, "_assemble"),
    "delta written": lambda: hold(publisher, "write_delta", before=False),
    "manifest not written": lambda: hold(publisher, "encode_manifest"),
    "nothing stored": lambda: hold(ObjectStore, "put_folder"),
    "half stored": lambda: hold(ObjectStore, "put_file", before=False),
    "manifest not stored": lambda: hold_manifest(),
    "stored": lambda: hold(ObjectStore, "put_folder", before=False),
}
OF_REBUILDING = tuple(BARRIERS)[:7]
OF_PUBLISHING = tuple(BARRIERS)[7:]


def hold_manifest() -> None:
    put = ObjectStore.put_file

    def wrapped(store: ObjectStore, key: str, file: Path) -> None:
        if key.endswith("/manifest.json"):
            stand()
        put(store, key, file)

    ObjectStore.put_file = wrapped  # type: ignore[method-assign]


def limit_memory(num_bytes: int) -> None:
    """What this process may still allocate; mapped files do not count."""
    status = Path("/proc/self/status").read_text()
    held = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (held + num_bytes, held + num_bytes))


class Count:
    """Calls made while it counts; the `kill_at`th is this process's last."""

    def __init__(self, kill_at: int) -> None:
        self.calls, self.kill_at = 0, kill_at

    def start(self) -> None:
        sys.setprofile(self._note)

    def stop(self) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1
            if self.calls == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def bring(start: Callable[[], None], store: str, cache: str, wanted: dict[str, str], file_bytes: int = 0) -> None:
    keeper = CheckpointKeeper(ObjectStore(store), Path(cache))
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    start()
    keeper.bring(Wanted(**wanted))


def publish(start: Callable[[], None], store: str, work: str, attempt: int, folders: dict[str, str]) -> None:
    """Versions of one attempt from saved models; only the last one counts."""
    chain, into = DeltaPublisher(Path(work), 100), ObjectStore(store)
    for number, (version, name) in enumerate(folders.items(), 1):
        folder, key = Path(name), f"runs/r/a{attempt}/v{int(version):06d}/model"
        digest = file_sha256(folder / WEIGHTS)
        told = SimpleNamespace(
            name=f"run-r.a{attempt}@v{version}", version=int(version), sha256=digest, base_fingerprint=""
        )
        if number == len(folders):
            start()
        chain.seal(folder, told, key)
        into.put_folder(key, folder)


def child(task: dict[str, Any], out: int) -> None:
    count = Count(task.pop("kill_at", 0))
    barrier, memory_bytes = task.pop("barrier", ""), task.pop("memory_bytes", 0)
    error = ""

    def start() -> None:
        if barrier:
            BARRIERS[barrier]()
        if memory_bytes:
            limit_memory(memory_bytes)
        count.start()

    try:
        {"bring": bring, "publish": publish}[task.pop("do")](start, **task)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    count.stop()
    os.write(out, json.dumps({"calls": count.calls, "error": error}).encode())


def serve() -> None:
    for line in sys.stdin:
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            child(json.loads(line), write)
            os._exit(0)
        os.close(write)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        with os.fdopen(read, "rb") as pipe:
            told = json.loads(pipe.read() or "{}")
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(json.dumps({"killed": killed, "calls": 0, "error": ""} | told), flush=True)


if __name__ == "__main__":
    serve()
