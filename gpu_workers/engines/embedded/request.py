"""A generation request: its validated parameters and its state while the engine works on it."""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import torch

from gpu_workers.contracts.constraints import Constraint
from gpu_workers.engines.embedded.lora import Adapter
from gpu_workers.engines.embedded.prefix_tree import Run, Tokens
from gpu_workers.engines.embedded.sampling import RowSampling


class RequestError(ValueError):
    """A request that cannot be served as it is; answered with 400."""


class State(StrEnum):
    WAITING = "waiting"  # no row yet; may hold a prefix of its keys and values
    RUNNING = "running"  # has a row in the decode batch
    FINISHED = "finished"


class Matcher(Protocol):
    """What an answer that is held to a grammar may go on with."""

    @property
    def is_terminated(self) -> bool: ...
    def accept(self, token: int) -> bool: ...
    def allowed(self) -> torch.Tensor | None: ...  # [V] of bool; None: every token


@dataclass(frozen=True)
class SamplingParams:
    """SGLang's sampling_params, the part this engine supports."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_new_tokens: int = 0
    n: int = 1
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    constraint: Constraint | None = None


@dataclass(eq=False)
class Request:
    """One sequence. `changed` is called on the engine's thread after new tokens (streams) and at the end."""

    input_ids: Tokens
    params: SamplingParams
    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    call_rid: str = ""  # the rid the caller gave when one call became several requests
    adapter: Adapter | None = None
    return_logprob: bool = False
    logprob_start: int = -1  # first input position whose log-prob is wanted; -1: none
    stream: bool = False
    matcher: Matcher | None = None  # of params.constraint
    changed: Callable[["Request"], None] = lambda _: None

    state: State = State.WAITING
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    version_spans: list[dict[str, Any]] = field(default_factory=list)
    num_cached_tokens: int | None = None  # set when first admitted
    num_retractions: int = 0
    created_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finished_at: float = 0.0

    leaf: Run | None = None  # locked; its path holds keys and values of tokens[:leaf.stop]
    generation: int = 0  # weights generation the cached keys and values come from
    slot: int = -1
    branch_length: int = 0  # tokens after leaf.stop kept in the branch slot
    rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        if self.params.sampling_seed is not None:
            self.rng = random.Random(self.params.sampling_seed)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids) + len(self.output_ids)

    @property
    def num_remaining(self) -> int:
        """Tokens it may still generate."""
        return self.params.max_new_tokens - len(self.output_ids)

    @property
    def next_scored(self) -> int | None:
        """The input position whose row gives the next log-prob that is wanted; None: there is no more."""
        position = self.logprob_start + len(self.input_logprobs)
        return position if self.logprob_start >= 0 and position < len(self.input_ids) - 1 else None

    @property
    def num_held(self) -> int:
        """Tokens whose keys and values are computed."""
        return (self.leaf.stop if self.leaf else 0) + self.branch_length

    def tokens(self, start: int = 0, stop: int | None = None) -> Tokens:
        """Input and output ids as one array, or a part of it."""
        whole = (
            np.concatenate([self.input_ids, np.asarray(self.output_ids, np.int32)])
            if self.output_ids
            else self.input_ids
        )
        return whole[start:stop]

    def token_at(self, position: int) -> int:
        num_input = len(self.input_ids)
        return int(self.input_ids[position]) if position < num_input else self.output_ids[position - num_input]

    def row_sampling(self) -> RowSampling:
        """This step's sampling of the row; consumes one random number."""
        p = self.params
        uniform = self.rng.random() if p.temperature > 0 else 0.0
        return RowSampling(p.temperature, p.top_p, p.top_k, p.min_p, uniform)

    def add_token(self, token: int, logprob: float, version: str) -> None:
        """Append one sampled token with the weights version it came from."""
        position = len(self.output_ids)
        self.output_ids.append(token)
        self.output_logprobs.append(logprob)
        if self.version_spans and self.version_spans[-1]["version"] == version:
            self.version_spans[-1]["end"] = position + 1
        else:
            self.version_spans.append({"version": version, "start": position, "end": position + 1})
