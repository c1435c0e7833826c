"""Continuous batching: requests join and leave between steps; every step decodes all rows and computes some prompts.

Single-threaded: only the engine's thread calls it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpu_workers.engines.embedded.admission import Admission, Prefill
from gpu_workers.engines.embedded.branches import BRANCH_TOKENS
from gpu_workers.engines.embedded.grammars import mask_logits
from gpu_workers.engines.embedded.memory import KeyValueMemory
from gpu_workers.engines.embedded.metrics import EngineMetrics
from gpu_workers.engines.embedded.model import Model
from gpu_workers.engines.embedded.planning import StepPlan, plan_step
from gpu_workers.engines.embedded.request import Request, State
from gpu_workers.engines.embedded.sampling import CHUNK_ROWS, Sampled, sample, token_logprobs
from gpu_workers.engines.embedded.text import Text

_STUCK = "no token of the vocabulary goes on with what the answer is held to"


@dataclass(frozen=True)
class Limits:
    """Bounds of the engine. Tokens are counted over all requests and the prefix cache."""

    max_running: int = 64
    max_total_tokens: int = 32768
    prefill_tokens_per_step: int = 512
    max_loras: int = 12
    max_lora_rank: int = 64

    @property
    def cache_tokens(self) -> int:
        """What the branch slots leave for the prefix tree."""
        return self.max_total_tokens - self.max_running * BRANCH_TOKENS


class Scheduler:
    """Owns the queues and the memory. running[i] has decode row and branch slot i."""

    def __init__(self, model: Model, limits: Limits, text: Text, metrics: EngineMetrics) -> None:
        self.model, self.limits, self.text, self.metrics = model, limits, text, metrics
        self.memory = KeyValueMemory(model.config, limits.cache_tokens, limits.max_running, model.weights.dtype)
        self.admission = Admission(self.memory, limits.max_running, limits.prefill_tokens_per_step)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.chunk_rows = 1 if model.block_rows else CHUNK_ROWS

    def add(self, request: Request) -> None:
        request.generation = self.model.generation
        self.waiting.append(request)

    def step(self, *, admit: bool = True) -> None:
        """One forward pass: every running request gets a token; admitted prompts advance."""
        self._spill_full_branches()
        admitted = self.admission.admit(self.waiting if admit else (), len(self.running))
        if not self.running and not admitted.num_rows:
            self._unblock()
            return
        now = time.perf_counter()
        for request in [*admitted.ready, *(r for p in admitted.prefills for r in p.requests)]:
            if not request.started_at:
                request.started_at = now
                self.metrics.queue_seconds(now - request.created_at)
        plan = plan_step(self.running, admitted.prefills)
        hidden = self._forward(plan)
        self._finish_prefills(admitted.prefills, plan, hidden)
        self._sample(plan, hidden, admitted.ready)

    def _forward(self, plan: StepPlan) -> torch.Tensor:
        if len(plan.batch.tokens):
            return self.model.hidden(plan.batch, self.memory.branches)
        return torch.empty(0, self.model.config.hidden_size, dtype=self.model.weights.dtype)

    def _finish_prefills(self, prefills: list[Prefill], plan: StepPlan, hidden: torch.Tensor) -> None:
        """Store new keys and values, note final hidden states and input log-probs."""
        row = len(self.running)
        for prefill in prefills:
            self.metrics.prompt_tokens(prefill.stop - prefill.start)
            added = prefill.tokens[prefill.start : prefill.stop]
            leaf = self.memory.tree.extend(prefill.run, added, prefill.kv, num_users=len(prefill.requests))
            if prefill.is_last:
                leaf.end_hidden = hidden[row].clone()
                row += 1
            for request in prefill.requests:
                self.memory.hold(request, leaf)
        if plan.scored:
            logits = self.model.logits(hidden[row:])
            ids = torch.tensor([token for _, tokens in plan.scored for token in tokens])
            logprobs = token_logprobs(logits, ids, 1 if self.model.block_rows else 0)
            for request, tokens in plan.scored:
                request.input_logprobs += logprobs[: len(tokens)]
                del logprobs[: len(tokens)]

    def _sample(self, plan: StepPlan, hidden: torch.Tensor, ready: list[Request]) -> None:
        """Draw a token for every decode row and every prompt that is complete, computing equal logits once."""
        num_decode = len(self.running)
        states, rows, requests = (
            [hidden[: num_decode + len(plan.finished)]],
            list(range(num_decode)),
            list(self.running),
        )
        for index, prefill in enumerate(plan.finished, start=num_decode):
            rows += [index] * len(prefill.requests)
            requests += prefill.requests
        next_row, row_of_run = num_decode + len(plan.finished), {}
        for request in ready:
            assert request.leaf is not None and request.leaf.end_hidden is not None
            if id(request.leaf) not in row_of_run:
                row_of_run[id(request.leaf)] = next_row
                states.append(request.leaf.end_hidden.unsqueeze(0))
                next_row += 1
            rows.append(row_of_run[id(request.leaf)])
            requests.append(request)
        if not requests:
            return
        logits = self.model.logits(torch.cat(states) if len(states) > 1 else states[0])
        if len(rows) != next_row:
            logits = logits.index_select(0, torch.tensor(rows))
        stuck = mask_logits(logits, requests)
        sampled = sample(logits, [request.row_sampling() for request in requests], self.chunk_rows)
        self._advance(requests, num_decode, sampled, stuck)

    def _advance(self, requests: list[Request], num_decode: int, sampled: Sampled, stuck: set[int]) -> None:
        now = time.perf_counter()
        for index, request in enumerate(requests):
            if index < num_decode:
                request.branch_length += 1
            else:
                self._give_slot(request)
            if request.params.max_new_tokens == 0:
                request.finish_reason = {"type": "length", "length": 0}
                continue
            token = sampled.ids[index]
            if index in stuck or (request.matcher is not None and not request.matcher.accept(token)):
                request.finish_reason = {"type": "abort", "message": _STUCK}
                continue
            request.add_token(token, sampled.logprobs[index], self.model.weight_version)
            self.metrics.token(request, now)
            request.finish_reason = self.text.finish_reason(request, self.model.config.context_length)
        admitted = {id(request) for request in requests[num_decode:]}
        if admitted:
            self.waiting = deque(request for request in self.waiting if id(request) not in admitted)
        for request in requests:
            if request.finish_reason is not None:
                self.finish(request, request.finish_reason)
            elif request.stream:
                request.changed(request)

    def _give_slot(self, request: Request) -> None:
        request.slot = len(self.running)
        request.state = State.RUNNING
        request.branch_length = 0
        self.running.append(request)

    def _free_slot(self, request: Request) -> None:
        """Keep slots dense: the last row moves into the hole."""
        last = self.running.pop()
        if last is not request:
            self.memory.branches.move(last.slot, request.slot, last.branch_length)
            self.running[request.slot] = last
            last.slot = request.slot
        request.slot = -1

    def finish(self, request: Request, reason: dict[str, Any]) -> None:
        """End a request in any state; its keys and values stay cached for a next turn."""
        request.finish_reason = reason
        self._leave(request)
        request.state = State.FINISHED
        request.finished_at = time.perf_counter()
        self.metrics.finished(request)
        request.changed(request)

    def retract(self, request: Request) -> None:
        """Take a running request's row away; it continues later from its tokens."""
        self._leave(request)
        request.state = State.WAITING
        request.num_retractions += 1
        request.generation = self.model.generation
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        if request.state is State.RUNNING:
            self.memory.keep_for_later(request)
            self._free_slot(request)
        elif request.state is State.WAITING:
            self.memory.release(request)
            if request in self.waiting:
                self.waiting.remove(request)

    def abort(self, matches: Callable[[Request], bool], message: str) -> int:
        """Finish matching requests with what they have; returns how many."""
        chosen = [request for request in [*self.running, *self.waiting] if matches(request)]
        for request in chosen:
            self.finish(request, {"type": "abort", "message": message})
        return len(chosen)

    def _spill_full_branches(self) -> None:
        for request in list(self.running):
            if request.state is State.RUNNING and request.branch_length == BRANCH_TOKENS:
                while not self.memory.make_room(BRANCH_TOKENS):
                    self._free_memory(keep=request)
                self.memory.spill(request)

    def _free_memory(self, keep: Request | None) -> None:
        """Unlock a waiting request's prefix or retract the newest running request other than `keep`."""
        holder = next((request for request in reversed(self.waiting) if request.leaf is not None), None)
        if holder is not None:
            self.memory.release(holder)
            return
        newest = max((r for r in self.running if r is not keep), key=lambda r: r.started_at, default=None)
        if newest is None:
            raise RuntimeError("a single request outgrew the engine's memory, which its acceptance had ruled out")
        self.retract(newest)

    def _unblock(self) -> None:
        """Nothing runs and nothing could start: give up the prefixes held by requests behind the first."""
        for request in list(self.waiting)[1:]:
            self.memory.release(request)
