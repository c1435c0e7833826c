"""A scripted engine and a sandbox that answers from a table: fakes of the seams for the rollout tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import SandboxRecord
from gpu_workers.contracts.seams import (
    EngineInfo,
    ExecResult,
    FinishedEpisode,
    GenerateRequest,
    GenerateResult,
    VerifierResult,
    WorkerError,
)
from gpu_workers.contracts.tasks import EnvironmentContract, TaskBundle
from gpu_workers.sessions.chat import ChatTemplate

Script = Callable[[int, str], str]  # (episode, conversation so far) -> text of the turn


class ScriptedEngine:
    """Answers with scripted texts. The episode's number is the third field of the request id."""

    def __init__(self, model: Path, script: Script, *, adapters: Sequence[str] = ("run-1.a1@v3",)) -> None:
        self.template = ChatTemplate(model)
        self.script = script
        self.adapters = tuple(adapters)
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.closed = False
        self.down = False
        self.num_running = 0
        self.most_running = 0

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        self._check()
        self.requests.append(request)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            await asyncio.sleep(0.005)
        finally:
            self.num_running -= 1
        text = self.script(int(request.request_id.split(".")[2]), self.template.decode(request.input_ids))
        if text == "<hang>":
            await asyncio.sleep(3600)
        ids = [*self.template.encode(text), self.template.eos_id]
        finish = "stop"
        if len(ids) > request.sampling.max_new_tokens:
            ids, finish = ids[: request.sampling.max_new_tokens], "length"
        return GenerateResult(
            output_ids=ids, logprobs=[-0.25] * len(ids), finish_reason=finish, engine_seconds=0.5, queue_seconds=0.125
        )

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        result = await self.generate(request)
        for stop in range(1, len(result.output_ids)):
            yield GenerateResult(result.output_ids[:stop], result.logprobs[:stop], "")
        yield result

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def info(self) -> EngineInfo:
        self._check()
        return EngineInfo(model_path=str(self.template.model_dir), weight_version="default", adapters=self.adapters)

    async def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.down:
            raise WorkerError(Boundary.ENGINE, "http://engine: connection refused")


class FakeSandbox:
    """Says what a table says; counts what is started and closed."""

    def __init__(self, backend: "FakeBackend", contract: EnvironmentContract) -> None:
        self.backend = backend
        self.contract = contract
        self.record = SandboxRecord(backend="fake", isolation="none")
        self.ended = False

    async def start(self) -> None:
        if self.backend.broken:
            raise WorkerError(Boundary.INFRASTRUCTURE, "SANDBOX_UNAVAILABLE: no user namespaces")
        self.backend.started += 1
        self.record.log += "start\n"

    async def run_python(
        self, source: str, *, function: str = "", arguments: dict[str, str] | None = None, **_: object
    ):
        await asyncio.sleep(self.backend.delay)
        call = (arguments or {}).get("arguments", arguments) or {}  # of a tool's own source, else of ours
        text = ",".join(f"{key}={value}" for key, value in call.items())
        self.record.log += f"{function}({text})\n"
        return ExecResult(exit_code=0, stdout=f"{{}}\n<{text}>", stderr="", duration_seconds=self.backend.delay)

    async def files(self) -> dict[str, bytes]:
        self.ended = True
        return {"seen.txt": b"x"}

    async def close(self) -> None:
        if not self.ended:
            self.record.log += "end\n"
        self.ended = True
        self.backend.closed += 1


class FakeBackend:
    name = "fake"

    def __init__(self, *, broken: bool = False, delay: float = 0.0) -> None:
        self.broken = broken
        self.delay = delay
        self.started = 0
        self.closed = 0

    def create(self, contract: EnvironmentContract) -> FakeSandbox:
        return FakeSandbox(self, contract)


class AnswerVerifier:
    """Passes the answer `yes`; remembers what it saw."""

    def __init__(self, error: WorkerError | None = None) -> None:
        self.error = error
        self.seen: list[FinishedEpisode] = []

    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult:
        self.seen.append(episode)
        if self.error is not None:
            raise self.error
        if episode.answer == "yes":
            return VerifierResult("pass", 1.0, "OK")
        return VerifierResult("fail", 0.0, "WRONG_ANSWER" if episode.answer else "NO_OUTPUT", "not yes")
