"""Which waiting requests start now, what of their prompts is computed in this step, and who shares the result."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from gpu_workers.engines.embedded.branches import BRANCH_TOKENS
from gpu_workers.engines.embedded.memory import KeyValueMemory
from gpu_workers.engines.embedded.prefix_tree import Run, Tokens, common_prefix
from gpu_workers.engines.embedded.request import Request

# A prompt that shares at least so many uncached tokens with one being computed waits a step to use them.
_WORTH_WAITING_TOKENS = 16


@dataclass
class Prefill:
    """Tokens [start, stop) of the requests' common sequence, computed once below `run`."""

    requests: list[Request]
    run: Run
    start: int
    stop: int
    tokens: Tokens  # the whole sequence
    kv: torch.Tensor

    @property
    def is_last(self) -> bool:
        """Whether the sequence is complete after this step."""
        return self.stop == len(self.tokens)


@dataclass
class Admitted:
    """`ready` requests need no computation: their prompt's last hidden state is cached."""

    prefills: list[Prefill] = field(default_factory=list)
    ready: list[Request] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Decode rows these requests will need."""
        return len(self.ready) + sum(len(p.requests) for p in self.prefills)


class Admission:
    """First come, first served, within the free rows, the free memory and a number of prompt tokens a step."""

    def __init__(self, memory: KeyValueMemory, max_running: int, tokens_per_step: int) -> None:
        self.memory, self.max_running, self.tokens_per_step = memory, max_running, tokens_per_step

    def admit(self, waiting: Iterable[Request], num_running: int) -> Admitted:
        """Choose and lock. Requests not chosen stay as they are."""
        admitted = Admitted()
        budget = self.tokens_per_step
        for request in waiting:
            if num_running + admitted.num_rows >= self.max_running:
                break
            tokens = request.tokens()
            if request.leaf is None:
                self.memory.hold(request, self._match(request, tokens))
            run = request.leaf
            assert run is not None
            if run.stop == len(tokens):
                self._note_cached(request, len(tokens))
                admitted.ready.append(request)
                continue
            if self._shares(admitted.prefills, request, tokens):
                continue
            size = min(len(tokens) - run.stop, budget)
            headroom = BRANCH_TOKENS * (num_running + admitted.num_rows + 1) if num_running or admitted.num_rows else 0
            planned = self.tokens_per_step - budget
            if (
                size <= 0
                or self.memory.num_free < planned + size + headroom
                or not self.memory.make_room(planned + size)
            ):
                self.memory.release(request)
                break
            budget -= size
            self._note_cached(request, run.stop)
            kv = self.memory.new_run(size)
            admitted.prefills.append(Prefill([request], run, run.stop, run.stop + size, tokens, kv))
        return admitted

    def _match(self, request: Request, tokens: Tokens) -> Run:
        """Longest usable cached prefix. At least one token is computed unless the final hidden state is known."""
        tree, namespace = self.memory.tree, self.memory.namespace(request)
        limit = len(tokens)
        if request.next_scored is not None:
            limit = min(request.next_scored, len(tokens) - 1)
        run = tree.match(namespace, tokens, limit)
        if run.stop == len(tokens) and run.end_hidden is None:
            run = tree.match(namespace, tokens, len(tokens) - 1)
        return run

    def _shares(self, prefills: list[Prefill], request: Request, tokens: Tokens) -> bool:
        """Join a prefill of the very same tokens, or wait for one that shares a good part."""
        assert request.leaf is not None
        for prefill in prefills:
            other = prefill.requests[0]
            if self.memory.namespace(other) != self.memory.namespace(request):
                continue
            overlap = common_prefix(prefill.tokens, tokens)
            wants_logprobs = request.logprob_start >= 0 or other.logprob_start >= 0
            if overlap == len(tokens) == len(prefill.tokens) and request.leaf is prefill.run and not wants_logprobs:
                self._note_cached(request, len(tokens))
                prefill.requests.append(request)
                return True
            if overlap >= request.leaf.stop + _WORTH_WAITING_TOKENS and request.logprob_start < 0:
                self.memory.release(request)
                return True
        return False

    @staticmethod
    def _note_cached(request: Request, num_tokens: int) -> None:
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(num_tokens, len(request.input_ids))
