"""A session server over an engine whose tokens the test decides and records; served in process or by uvicorn."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult, VersionSpan, WorkerError
from gpu_workers.listening import listen
from gpu_workers.serving.control import SECRET_HEADER
from gpu_workers.serving.errors import ApiError, render_error
from gpu_workers.serving.session_routes import session_routes
from gpu_workers.serving.session_server import SessionServer
from gpu_workers.sessions.chat import ChatTemplate, load_template
from gpu_workers.sessions.limits import SessionLimits

SECRET = "shh"
OWNER = {SECRET_HEADER: SECRET}
DEADLINE_SECONDS = 60.0


@dataclass
class Planned:
    """What the engine answers one request with."""

    ids: list[int]
    finish_reason: str = "stop"
    version: int = 0


@dataclass
class Served:
    """One request as the engine saw it, and what it gave."""

    request: GenerateRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int = 0


class RecordingEngine:
    """RolloutEngine whose `plan` decides; keeps every request. `hold_after`: tokens that it gives before `release`."""

    def __init__(self, model: Path, plan: Callable[[GenerateRequest], Planned]) -> None:
        self.template = load_template(model)
        self.plan = plan
        self.adapters: tuple[str, ...] = ("run-1.a1@v1", "run-1.a1@v2")
        self.served: list[Served] = []
        self.aborted: list[str] = []
        self.down = False
        self.hold_after: int | None = None
        self.release = threading.Event()
        self._num_tokens = 0

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        last = None
        async for result in self.stream(request):
            last = result
        assert last is not None
        return last

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        if self.down:
            raise WorkerError(Boundary.ENGINE, "http://engine: connection refused")
        if request.adapter and request.adapter not in self.adapters:
            error = WorkerError(Boundary.ENGINE, f"adapter {request.adapter!r} is not loaded")
            error.status = 400  # type: ignore[attr-defined]
            raise error
        planned = self.plan(request)
        ids = planned.ids[: request.sampling.max_new_tokens]
        finish = "length" if len(ids) < len(planned.ids) else planned.finish_reason
        record = Served(request, version=planned.version)
        self.served.append(record)
        for token in ids:
            await asyncio.sleep(0)
            while len(record.ids) == self.hold_after and not self._goes_on(request):
                await asyncio.sleep(0.002)
            if request.request_id in self.aborted:
                yield self._result(record, "abort")
                return
            self._num_tokens += 1
            record.ids.append(token)
            record.logprobs.append(-0.001 * self._num_tokens)
            yield self._result(record, finish if len(record.ids) == len(ids) else "")
        if not ids:
            yield self._result(record, finish)

    def _goes_on(self, request: GenerateRequest) -> bool:
        return self.release.is_set() or request.request_id in self.aborted

    def _result(self, record: Served, finish: str) -> GenerateResult:
        spans = [VersionSpan(str(record.version), 0, len(record.ids))]
        return GenerateResult(list(record.ids), list(record.logprobs), finish, spans, 0, 0.5, 0.125)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def info(self) -> EngineInfo:
        if self.down:
            raise WorkerError(Boundary.ENGINE, "http://engine: connection refused")
        return EngineInfo(model_path=str(self.template.model_dir), weight_version="0", adapters=self.adapters)

    async def close(self) -> None:
        return


def say(engine_template: ChatTemplate, *texts: str) -> Callable[[GenerateRequest], Planned]:
    """Answers with these texts in turn, the last one for ever."""
    waiting = list(texts)

    def plan(request: GenerateRequest) -> Planned:
        text = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return Planned([*engine_template.encode(text), engine_template.eos_id])

    return plan


def hermes(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def make_server(folder: Path, engines: Sequence[RecordingEngine], **limits: float) -> SessionServer:
    return SessionServer(folder, engines, engines[0].template.model_dir.parent, SECRET, SessionLimits(**limits))


def make_app(server: SessionServer) -> Starlette:
    app = Starlette(routes=session_routes(), exception_handlers={ApiError: render_error})
    app.state.sessions = server
    return app


@contextlib.contextmanager
def served(app: Starlette) -> Iterator[str]:
    """Base URL of the application on a real socket, in a thread with a loop of its own."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, lifespan="off", log_level="error", access_log=False, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_SECONDS)
        listener.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.01)
