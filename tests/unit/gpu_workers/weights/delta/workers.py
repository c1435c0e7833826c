"""The tests' side of worker processes that are killed."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpu_workers.contracts.store import ObjectStore
from gpu_workers.weights.delta.keeping import Wanted
from ratchet.env import ROOT


@dataclass(frozen=True)
class Ending:
    """How a process ended: killed, or after so many calls, maybe with an error."""

    killed: bool
    calls: int
    error: str


class Workers:
    """Starts real processes; each does one thing and ends, or is killed by SIGKILL."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.unit.gpu_workers.weights.delta.work"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env={"PYTHONPATH": f".:{ROOT / 'platform'}"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def bring(self, store: ObjectStore, cache: Path, wanted: Wanted, **options: Any) -> Ending:
        """`kill_at`: at which call it is killed; `barrier`: the place where it is; `file_bytes`: the largest file;
        `memory_bytes`: what it may allocate."""
        return self._do("bring", store=store.url, cache=str(cache), wanted=msgspec.to_builtins(wanted), **options)

    def publish(self, store: ObjectStore, work: Path, attempt: int, folders: dict[int, Path], **options: Any) -> Ending:
        """Versions of one attempt from saved models, which it may change; only the last publication counts."""
        named = {str(version): str(folder) for version, folder in folders.items()}
        return self._do("publish", store=store.url, work=str(work), attempt=attempt, folders=named, **options)

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _do(self, what: str, **task: Any) -> Ending:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": what, **task}) + "\n")
        self._process.stdin.flush()
        return Ending(**json.loads(self._process.stdout.readline()))
