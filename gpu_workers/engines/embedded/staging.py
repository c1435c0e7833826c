"""Other weights that are read and packed while generation goes on, so that their update only swaps them in.

A route that SGLang does not have: a client that is answered 404 pauses the engine for the whole update.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gpu_workers.engines.embedded.config import EngineConfigError
from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.embedded.http import Json, read_body
from gpu_workers.engines.embedded.model import Model

KEEP_SECONDS = 600.0  # staged weights take a model's memory: those whose update never comes are forgotten

Stamp = tuple[tuple[str, int, int, int], ...]


class StageBody(msgspec.Struct, kw_only=True):
    model_path: str


@dataclass(frozen=True)
class _Staged:
    path: str
    stamp: Stamp
    model: Model


class Staging:
    """At most one model ahead of the served one. Changed only by whoever holds the lock of weight updates."""

    def __init__(self) -> None:
        self._staged: _Staged | None = None
        self._forgetting: asyncio.TimerHandle | None = None

    async def stage(self, engine: Engine, path: str) -> None:
        """Raises EngineConfigError; what was staged before is forgotten first."""
        self.forget()
        stamp = _stamp(path)
        model = await asyncio.to_thread(engine.read_model, path)
        self._staged = _Staged(path, stamp, model)
        self._forgetting = asyncio.get_running_loop().call_later(KEEP_SECONDS, self.forget)

    async def take(self, engine: Engine, path: str) -> Model:
        """The folder's model, read now unless it was staged and its files are the same. Raises EngineConfigError."""
        staged = self._staged
        self.forget()
        if staged is None or staged.path != path or staged.stamp != _stamp(path):
            return await asyncio.to_thread(engine.read_model, path)
        return staged.model

    def forget(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._staged = self._forgetting = None


def _stamp(path: str) -> Stamp:
    """Tells whether a folder's files are still those that were read; empty where they cannot be listed."""
    try:
        files = [(file.name, file.stat()) for file in sorted(Path(path).iterdir())]
    except OSError:
        return ()
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in files)


async def stage_weights(http: HttpRequest) -> Response:
    body = await read_body(http, StageBody)
    state = http.app.state
    async with state.weights_lock:
        try:
            await state.staging.stage(state.engine, body.model_path)
        except EngineConfigError as error:
            return Json({"success": False, "message": str(error)}, status_code=400)
    return Json({"success": True, "message": "Succeeded to stage model weights."})
