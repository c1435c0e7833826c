"""A fake engine without a model: tokens follow from seed, adapter and prompt, so tests can foresee and repeat them."""

import asyncio
import hashlib
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from gpu_workers.contracts.checkpoints import ADAPTER_WEIGHTS
from gpu_workers.contracts.seams import EngineInfo, GenerateRequest, GenerateResult, VersionSpan
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.versions import check_versions

Reply = Callable[[GenerateRequest], Sequence[int]]  # the ids a request is answered with, before stops and limits
_GAP_BOUNDS = (0.001, 0.01, 0.1, 1.0, math.inf)


@dataclass(eq=False)
class _Open:
    """A request being answered."""

    request: GenerateRequest
    rid: str
    aborted: bool = False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)

    def add(self, token: int, logprob: float, version: str) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        stop = len(self.ids)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = VersionSpan(version, self.spans[-1].start, stop)
        else:
            self.spans.append(VersionSpan(version, stop - 1, stop))


class ScriptedEngine:
    """RolloutEngine in memory. A token takes `token_seconds`; without a `reply` tokens are pseudo-random."""

    def __init__(
        self,
        *,
        reply: Reply | None = None,
        vocab_size: int = 100,
        context_length: int = 1024,
        eos_id: int = 2,
        max_adapters: int = 12,
        token_seconds: float = 0.0,
        model_path: str = "scripted",
        fingerprint: str = "",
    ) -> None:
        self.reply, self.vocab_size, self.context_length, self.eos_id = reply, vocab_size, context_length, eos_id
        self.max_adapters, self.token_seconds = max_adapters, token_seconds
        self.model_path, self.fingerprint, self.weight_version = model_path, fingerprint, "default"
        self.adapters: dict[str, str] = {}  # name -> folder, the least recently used first
        self._gone: dict[str, str] = {}  # unloaded or pushed out: a request brings them back
        self.num_requests = self.num_tokens = self.num_updates = 0
        self._retiring: set[str] = set()
        self._open: list[_Open] = []
        self._running = asyncio.Event()
        self._running.set()
        self._pause_mode = ""
        self._gaps = dict.fromkeys(_GAP_BOUNDS, 0.0)

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """The last result of the stream."""
        last = GenerateResult([], [], "")
        async for result in self.stream(request):
            last = result
        return last

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        """One cumulative result a token. Raises EngineError for a bad request."""
        await self._until(lambda: request.adapter not in self._retiring)
        if request.adapter in self._gone:
            self._add(request.adapter, self._gone[request.adapter])
        self._check(request)
        if request.adapter:
            self.adapters[request.adapter] = self.adapters.pop(request.adapter)
        entry = _Open(request, request.request_id or uuid.uuid4().hex)
        self._open.append(entry)
        started = last = time.perf_counter()
        try:
            for token, logprob in self._tokens(request):
                await self._until(lambda: entry.aborted or self._running.is_set())
                await asyncio.sleep(self.token_seconds)
                if entry.aborted:
                    break
                entry.add(token, logprob, self.weight_version)
                self.num_tokens += 1
                now = time.perf_counter()
                self._note_gap(now - last)
                last = now
                finish = self._finish(request, entry.ids)
                yield self._result(entry, finish, started)
                if finish:
                    return
            yield self._result(entry, "abort" if entry.aborted else "length", started)
        finally:
            self._open.remove(entry)
            self.num_requests += 1

    async def abort(self, request_id: str) -> None:
        for entry in self._open:
            entry.aborted |= entry.rid == request_id

    async def pause(self, mode: str = "abort") -> None:
        if mode not in ("abort", "retract", "in_place"):
            raise EngineError(f"pause mode {mode!r} is unknown", status=400, retryable=False)
        if mode == "abort":
            for entry in self._open:
                entry.aborted = True
            await self._until(lambda: not self._open)
        self._pause_mode = mode
        self._running.clear()

    async def resume(self) -> None:
        self._pause_mode = ""
        self._running.set()

    async def flush_cache(self) -> None:
        if self._open and self._pause_mode != "retract":
            raise EngineError(f"cannot flush: {len(self._open)} requests are running", status=400, retryable=False)

    async def info(self) -> EngineInfo:
        adapters = tuple(name for name in self.adapters if name not in self._retiring)
        return EngineInfo(self.model_path, self.weight_version, adapters, {"model_fingerprint": self.fingerprint})

    async def healthy(self) -> bool:
        return True

    async def load_adapter(self, name: str, path: str) -> None:
        if name in self.adapters:
            raise EngineError(f"adapter {name!r} is already loaded", status=400)
        if not (Path(path) / ADAPTER_WEIGHTS).is_file():
            raise EngineError(f"adapter {name!r}: cannot read {path}/{ADAPTER_WEIGHTS}", status=400)
        self._add(name, path)

    def _add(self, name: str, path: str) -> None:
        """Like SGLang: one too many pushes out the least recently used, which a request brings back."""
        self._gone.pop(name, None)
        self.adapters[name] = path
        if len(self.adapters) > self.max_adapters:
            oldest = next(iter(self.adapters))
            self._gone[oldest] = self.adapters.pop(oldest)

    async def unload_adapter(self, name: str) -> None:
        """Waits for the adapter's running requests; new ones wait meanwhile."""
        if name not in self.adapters or name in self._retiring:
            raise EngineError(f"adapter {name!r} is not loaded", status=400)
        self._retiring.add(name)
        await self._until(lambda: all(entry.request.adapter != name for entry in self._open))
        self._retiring.discard(name)
        self._gone[name] = self.adapters.pop(name)

    async def stage_weights(self, path: str) -> bool:
        """Raises EngineError where they cannot be read."""
        file = Path(path) / "model.safetensors"
        try:
            with safe_open(file, "np"):
                return True
        except (OSError, SafetensorError) as error:
            raise EngineError(f"cannot read {file}: {error}", status=400, retryable=False) from error

    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None:
        """Waits for running requests unless paused; then requests that run go on with the new version."""
        await self.stage_weights(path)
        if not self._pause_mode:
            await self._until(lambda: not self._open)
        elif flush_cache:
            await self.flush_cache()
        self.model_path, self.weight_version = path, version
        self.num_updates += 1

    async def set_version(self, version: str) -> None:
        self.weight_version = version

    async def weights_digest(self) -> str:
        file = Path(self.model_path) / "model.safetensors"
        return hashlib.sha256(file.read_bytes() if file.is_file() else self.model_path.encode()).hexdigest()

    async def metrics(self) -> dict[str, float]:
        return {
            "sglang:num_running_reqs": float(len(self._open)),
            "sglang:num_queue_reqs": 0.0,
            "sglang:cache_hit_rate": 0.0,
            "sglang:num_requests_total": float(self.num_requests),
            "sglang:generation_tokens_total": float(self.num_tokens),
        }

    async def token_gaps(self) -> dict[float, float]:
        return dict(self._gaps)

    async def close(self) -> None:
        for entry in self._open:
            entry.aborted = True
        self._running.set()

    def _check(self, request: GenerateRequest) -> None:
        num_input, num_new = len(request.input_ids), request.sampling.max_new_tokens
        problem = ""
        if not num_input:
            problem = "input_ids is empty"
        elif not all(0 <= token < self.vocab_size for token in request.input_ids):
            problem = f"input_ids holds an id outside the vocabulary of {self.vocab_size}"
        elif num_new < 1:
            problem = f"max_new_tokens is {num_new}"
        elif num_input + num_new > self.context_length:
            problem = f"{num_input} input and {num_new} new tokens exceed the context length of {self.context_length}"
        elif request.sampling.temperature < 0 or not 0 < request.sampling.top_p <= 1:
            problem = "temperature must be at least 0 and top_p in (0, 1]"
        elif request.constraint is not None:
            problem = f"the scripted engine holds no answer to a {request.constraint.kind}"
        if problem:
            raise EngineError(problem, status=400, retryable=False)
        if request.adapter and (request.adapter not in self.adapters or request.adapter in self._retiring):
            raise EngineError(f"adapter {request.adapter!r} is not loaded", status=400)

    def _tokens(self, request: GenerateRequest) -> list[tuple[int, float]]:
        """Ids and log-probs of the whole answer; greedy ones do not depend on the seed."""
        limit = request.sampling.max_new_tokens
        seed = request.sampling.seed if request.sampling.temperature > 0 else "greedy"
        key = f"{self.model_path}|{seed}|{self.adapters.get(request.adapter)}|{list(request.input_ids)}"
        digests = [hashlib.sha256(f"{key}|{position}".encode()).digest() for position in range(limit)]
        ids = [digest[0] % self.vocab_size for digest in digests]
        if self.reply is not None:
            ids = [*self.reply(request)][:limit]
        return [(token, -0.01 - digest[1] / 64) for token, digest in zip(ids, digests, strict=False)]

    def _finish(self, request: GenerateRequest, ids: list[int]) -> str:
        if ids[-1] == self.eos_id or ids[-1] in request.stop_token_ids:
            return "stop"
        return "length" if len(ids) >= request.sampling.max_new_tokens else ""

    def _result(self, entry: _Open, finish: str, started: float) -> GenerateResult:
        seconds = time.perf_counter() - started
        result = GenerateResult(list(entry.ids), list(entry.logprobs), finish, list(entry.spans), 0, seconds, 0.0)
        return check_versions(result, entry.request)

    def _note_gap(self, seconds: float) -> None:
        for bound in self._gaps:
            self._gaps[bound] += seconds <= bound

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)
