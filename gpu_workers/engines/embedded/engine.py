"""The engine's own thread: runs the scheduler, and control commands between its steps."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import torch

from gpu_workers.engines.embedded.config import LlamaConfig
from gpu_workers.engines.embedded.deterministic import keeps_rows_of
from gpu_workers.engines.embedded.grammars import Grammars
from gpu_workers.engines.embedded.lora import Adapter, AdapterError, load_adapter
from gpu_workers.engines.embedded.metrics import EngineMetrics
from gpu_workers.engines.embedded.model import Model
from gpu_workers.engines.embedded.request import Request
from gpu_workers.engines.embedded.scheduler import Limits, Scheduler
from gpu_workers.engines.embedded.text import Text
from gpu_workers.engines.embedded.weights import load_weights, pack_weights
from gpu_workers.process import release_freed_memory

logger = logging.getLogger(__name__)
T = TypeVar("T")
KEPT_BYTES = 3 << 29  # weights and cache; more is freed activations of prompts of many lengths
# An idle engine waits this long after a first request, so that the siblings of its group are computed with it.
GATHER_SECONDS = 0.004


class PauseMode(StrEnum):
    """abort: finish everything with what it has. retract: back to the queue, cache freed. in_place: freeze."""

    ABORT = "abort"
    RETRACT = "retract"
    IN_PLACE = "in_place"


class EngineBusyError(RuntimeError):
    """The operation needs an engine without running requests."""


class EngineStoppedError(RuntimeError):
    """The engine's thread has ended: nothing is served until a restart."""


class Engine:
    """Thread-safe front of one model. Public methods may be called from any thread."""

    def __init__(self, model: Model, text: Text, limits: Limits, served_name: str = "base") -> None:
        self.text, self.limits, self.served_name = text, limits, served_name
        self.metrics = EngineMetrics(served_name)
        self.grammars = Grammars(text.tokenizer, model.config.vocab_size, model.config.eos_ids)
        self.scheduler = Scheduler(model, limits, text, self.metrics)
        self.adapters: dict[str, Adapter] = {}
        self.adapter_paths: dict[str, str] = {}  # of all that were ever loaded: a request brings one back
        self.paused = False
        self.draining = False  # running requests finish, waiting ones wait
        self.failure = ""
        self.started_at = time.time()
        self._inbox: deque[Request] = deque()
        self._commands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def model(self) -> Model:
        return self.scheduler.model

    @property
    def config(self) -> LlamaConfig:
        return self.model.config

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting) + len(self._inbox)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; open requests are aborted."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: Request) -> None:
        """Queue a validated request. Raises EngineStoppedError."""
        with self._wake:
            if self._stopping or self.failure:
                raise self._stopped()
            self._inbox.append(request)
            self._wake.notify_all()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the engine's thread between two steps."""
        future: Future[T] = Future()
        with self._wake:
            if self._stopping or self.failure:
                future.set_exception(self._stopped())
            else:
                self._commands.append((function, future))
                self._wake.notify_all()
        return future

    def _stopped(self) -> EngineStoppedError:
        return EngineStoppedError(f"the engine has stopped{f' ({self.failure})' if self.failure else ''}; restart it")

    # -- control, to be run through call() --

    def abort(self, rid: str, abort_all: bool, message: str = "Abort in waiting queue or while running") -> int:
        """Abort a request or the call it came from, or everything. Like SGLang, with an id also those it starts."""
        known = any(rid in (r.rid, r.call_rid) for r in [*self.scheduler.running, *self.scheduler.waiting])
        if not abort_all and not (rid and known):
            return 0
        return self.scheduler.abort(lambda request: abort_all or request.rid.startswith(rid), message)

    def pause(self, mode: PauseMode) -> None:
        self.paused = True
        if mode is PauseMode.ABORT:
            self.scheduler.abort(lambda _: True, "Aborted by pause_generation")
        elif mode is PauseMode.RETRACT:
            for request in sorted(self.scheduler.running, key=lambda r: r.started_at, reverse=True):
                self.scheduler.retract(request)

    def resume(self) -> None:
        self.paused = False

    def flush_cache(self) -> None:
        """Forget all cached prefixes. Raises EngineBusyError while requests run, or would at once."""
        if self.scheduler.running or (self.num_waiting and not self.paused):
            raise EngineBusyError(
                f"cannot flush the cache: {self.num_running} requests are running and {self.num_waiting} are waiting; "
                "pause with abort or retract first"
            )
        self._forget_cache()

    def _forget_cache(self) -> None:
        for request in self.scheduler.waiting:
            self.scheduler.memory.release(request)
        self.scheduler.memory.tree.clear()

    def replace_model(self, model: Model, weight_version: str | None, flush: bool) -> None:
        """Swap the weights between two steps; None leaves the version's name as it is.

        Without a flush running requests continue over their old cache.
        """
        if flush and self.scheduler.running:
            raise EngineBusyError(f"cannot flush the cache: {self.num_running} requests are running; nothing was done")
        if flush:
            self._forget_cache()
        model.generation = self.model.generation + 1
        model.weight_version = self.model.weight_version if weight_version is None else weight_version
        self.scheduler.model = model
        for request in self.scheduler.waiting:
            request.generation = model.generation
            self.scheduler.memory.release(request)

    def set_weight_version(self, version: str) -> None:
        self.model.weight_version = version

    def add_adapter(self, adapter: Adapter) -> Adapter | None:
        """Make it visible. Returns the least recently used one when there are now too many: it has to go."""
        self.adapters[adapter.name] = adapter
        self.adapter_paths[adapter.name] = adapter.path
        held = [other for other in self.adapters.values() if not other.retiring]
        leaving = [other for other in held if other is not adapter and not other.pinned]
        if len(held) <= self.limits.max_loras or not leaving:
            return None
        oldest = min(leaving, key=lambda other: other.last_used)
        oldest.retiring = True
        return oldest

    def remove_unused_adapter(self, adapter: Adapter) -> bool:
        """Remove unless an accepted request still uses it."""
        if any(r.adapter is adapter for r in [*self.scheduler.running, *self.scheduler.waiting, *self._inbox]):
            return False
        if self.adapters.get(adapter.name) is adapter:
            del self.adapters[adapter.name]
        self.scheduler.memory.tree.evict_namespace(adapter.uid)
        return True

    # -- slow parts, run on other threads --

    def read_adapter(self, name: str, path: str) -> Adapter:
        """Check and read an adapter without disturbing generation. Raises AdapterError."""
        if name in self.adapters:
            raise AdapterError(f"adapter {name!r} is already loaded; unload it first")
        adapter = load_adapter(name, Path(path), self.config, self.model.weights.dtype, self.limits.max_lora_rank)
        block_rows = self.model.block_rows
        if block_rows and not keeps_rows_of(adapter, block_rows):
            raise AdapterError(f"{path}: rank {adapter.rank} cannot be served with --deterministic-rows {block_rows}")
        return adapter

    def read_model(self, path: str) -> Model:
        """Read other weights of the same shape. Raises EngineConfigError."""
        folder, current = Path(path), self.model
        config = current.check_successor(folder)
        weights = load_weights(folder, config, current.weights.dtype)
        return Model(folder, config, weights, current.rotary, block_rows=current.block_rows)

    def pack_model(self, tensors: Mapping[str, torch.Tensor]) -> Model:
        """Other weights of the same shape that were sent. Raises EngineConfigError."""
        current = self.model
        weights = pack_weights(tensors, current.config, current.weights.dtype)
        return Model(current.path, current.config, weights, current.rotary, block_rows=current.block_rows)

    # -- the thread --

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    self._run_commands()
                    if not self.paused:
                        self._step()
                    if not self._has_requests():  # idle: nobody waits for the pages to come back
                        release_freed_memory(KEPT_BYTES)
        except Exception as error:  # the thread's edge: every caller is told, the server turns unhealthy
            logger.exception("the engine's thread failed")
            self.failure = f"{type(error).__name__}: {error}"
        self._close()

    def _wait_for_work(self) -> bool:
        """Block until there is something to do; False to stop."""
        with self._wake:
            idle = not self.scheduler.running and not self.scheduler.waiting
            while not self._stopping and not self._commands and not self._has_requests():
                self._wake.wait()
            if self._stopping:
                return False
            if idle and self._inbox and not self._commands:
                deadline = time.perf_counter() + GATHER_SECONDS
                while (left := deadline - time.perf_counter()) > 0 and not self._stopping:
                    self._wake.wait(left)
            while self._inbox:
                self.scheduler.add(self._inbox.popleft())
            return True

    def _has_requests(self) -> bool:
        if self.paused:
            return bool(self._inbox)  # they only move to the queue
        if self.draining:
            return bool(self.scheduler.running or self._inbox)
        return bool(self.scheduler.running or self.scheduler.waiting or self._inbox)

    def _run_commands(self) -> None:
        while True:
            with self._wake:
                if not self._commands:
                    return
                function, future = self._commands.popleft()
            try:
                future.set_result(function())
            except Exception as error:  # belongs to the caller
                future.set_exception(error)

    def _step(self) -> None:
        scheduler = self.scheduler
        scheduler.step(admit=not self.draining)
        tree, capacity = scheduler.memory.tree, scheduler.memory.capacity
        self.metrics.observe_load(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_used=tree.num_tokens,
            share_used=tree.num_locked_tokens / capacity,
        )

    def _close(self) -> None:
        with self._wake:
            self._stopping = True
            inbox, self._inbox = list(self._inbox), deque()
            commands, self._commands = list(self._commands), deque()
        for _, future in commands:
            future.set_exception(self._stopped())
        for request in [*self.scheduler.running, *self.scheduler.waiting, *inbox]:
            request.finish_reason = {"type": "abort", "message": self.failure or "the engine is shutting down"}
            request.changed(request)
