"""Constrained output by xgrammar: grammars compiled once for the tokenizer, and what a request may sample next.

Compiling runs on threads of its own and holds no lock of Python's, so that generation goes on meanwhile.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from tokenizers import Tokenizer

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.engines.embedded.request import Request, RequestError
from gpu_workers.engines.schemas import JsonSchemaError, check_structural_tag, read_json_schema

INSTALL = "pip install --no-deps xgrammar==0.2.7"
CACHE_BYTES = 64 << 20
MAX_CHARACTERS = 1 << 16
COMPILE_SECONDS = 60.0  # an ordinary schema takes 10 ms; strings with a maxLength in the hundreds take seconds
_ANY_JSON = "$$ANY$$"  # SGLang's word for any JSON value
_COMPILERS = 2


class Compiled(Protocol):
    """xgrammar's CompiledGrammar: shared by every request that is held to it."""

    @property
    def memory_size_bytes(self) -> int: ...


class Grammars:
    """Compiled grammars of one tokenizer, the least recently used forgotten first."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Iterable[int], cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, sorted(eos_ids)
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._compiler: Any = None
        self._cached: OrderedDict[Constraint, Compiled] = OrderedDict()
        self._compiling: dict[Constraint, Future[Compiled]] = {}
        self._pool = ThreadPoolExecutor(_COMPILERS, thread_name_prefix="grammar")

    @property
    def num_bytes(self) -> int:
        """Of the cached grammars."""
        with self._lock:
            return sum(grammar.memory_size_bytes for grammar in self._cached.values())

    async def prepare(self, constraints: Iterable[Constraint]) -> dict[Constraint, Compiled]:
        """Compile what is not cached. Raises RequestError with the place where a constraint is wrong."""
        return {constraint: await self._compiled(constraint) for constraint in set(constraints)}

    async def _compiled(self, constraint: Constraint) -> Compiled:
        future = self._ask(constraint)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), COMPILE_SECONDS)
        except TimeoutError as error:
            raise RequestError(
                f"sampling_params.{constraint.kind} takes more than {COMPILE_SECONDS:g} s to compile; make it simpler"
            ) from error

    def _ask(self, constraint: Constraint) -> "Future[Compiled]":
        with self._lock:
            cached = self._cached.get(constraint)
            if cached is not None:
                self._cached.move_to_end(constraint)
                done: Future[Compiled] = Future()
                done.set_result(cached)
                return done
            if constraint not in self._compiling:  # else it waits with whoever came first
                self._compiling[constraint] = self._pool.submit(self._compile, constraint)
            return self._compiling[constraint]

    def _compile(self, constraint: Constraint) -> Compiled:
        try:
            compiled = self._compile_anew(constraint)
        except BaseException:
            with self._lock:
                del self._compiling[constraint]
            raise
        with self._lock:
            del self._compiling[constraint]
            self._cached[constraint] = compiled
            held = sum(grammar.memory_size_bytes for grammar in self._cached.values())
            while held > self._cache_bytes and len(self._cached) > 1:
                held -= self._cached.popitem(last=False)[1].memory_size_bytes
        return compiled

    def _compile_anew(self, constraint: Constraint) -> Compiled:
        if not self._eos_ids:
            raise RequestError(f"sampling_params.{constraint.kind}: the model has no end token, so nothing ends it")
        _check(constraint)
        compiler = self._xgrammar_compiler()
        try:
            compiled: Compiled = _compile(compiler, constraint)
        except RuntimeError as error:
            raise RequestError(f"sampling_params.{constraint.kind}: {_reason(error)}") from error
        return compiled

    def _xgrammar_compiler(self) -> Any:
        """Made with the first constraint: importing xgrammar and reading the vocabulary takes seconds."""
        with _importing:
            if self._compiler is None:
                try:
                    import xgrammar
                    from transformers import PreTrainedTokenizerFast
                except ImportError as error:
                    raise RequestError(f"constrained output needs xgrammar ({error}): {INSTALL}") from error
                tokenizer = PreTrainedTokenizerFast(tokenizer_object=self._tokenizer)
                try:
                    info = xgrammar.TokenizerInfo.from_huggingface(
                        tokenizer, vocab_size=self._vocab_size, stop_token_ids=self._eos_ids
                    )
                except (ValueError, RuntimeError) as error:
                    raise RequestError(f"xgrammar does not take this model's tokenizer: {error}") from error
                # Its own cache takes token-level structural tags for one another.
                self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
            return self._compiler


_importing = threading.Lock()


class GrammarMatcher:
    """How far one answer has come in its grammar."""

    def __init__(self, compiled: Compiled, vocab_size: int) -> None:
        import xgrammar

        shared: Any = compiled
        self._matcher = xgrammar.GrammarMatcher(shared)
        self._words = np.zeros((1, -(-vocab_size // 32)), np.int32)
        self._vocab_size = vocab_size

    @property
    def is_terminated(self) -> bool:
        """Whether the end token was taken."""
        return bool(self._matcher.is_terminated())

    def accept(self, token: int) -> bool:
        """Go on with a sampled token; False where the grammar has no place for it."""
        return bool(self._matcher.accept_token(token))

    def allowed(self) -> torch.Tensor | None:
        """Which tokens [V] may follow; None: all."""
        if not self._matcher.fill_next_token_bitmask(self._words):
            return None
        bits = np.unpackbits(self._words.view(np.uint8), bitorder="little")[: self._vocab_size]
        return torch.from_numpy(bits).view(torch.bool)


def mask_logits(logits_NV: torch.Tensor, requests: Sequence[Request]) -> set[int]:
    """Take away, in place, what constrained rows may not sample. Returns the rows that nothing is left for."""
    stuck = set()
    for row, request in enumerate(requests):
        if request.matcher is None or (allowed := request.matcher.allowed()) is None:
            continue
        if not allowed.any():
            stuck.add(row)
            continue
        logits_NV[row].masked_fill_(~allowed, float("-inf"))
    return stuck


def constraint_of(params: Mapping[str, Any]) -> Constraint | None:
    """The one that sampling_params name. Raises RequestError for more than one, or for what is no text."""
    named = {kind: params[kind] for kind in ConstraintKind if params.get(kind)}
    if len(named) > 1:
        raise RequestError(
            f"sampling_params: only one of {', '.join(ConstraintKind)} can be set, got {', '.join(named)}"
        )
    for kind, text in named.items():
        if not isinstance(text, str):
            raise RequestError(f"sampling_params.{kind} must be a text, got {type(text).__name__}")
        if len(text) > MAX_CHARACTERS:
            raise RequestError(f"sampling_params.{kind} has {len(text)} characters; at most {MAX_CHARACTERS} are taken")
        return Constraint(kind, text)
    return None


def _check(constraint: Constraint) -> None:
    """What xgrammar would take without holding to it, or refuse without saying where. Raises RequestError."""
    try:
        if constraint.kind is ConstraintKind.JSON_SCHEMA and constraint.text != _ANY_JSON:
            read_json_schema(constraint.text)
        elif constraint.kind is ConstraintKind.STRUCTURAL_TAG:
            check_structural_tag(constraint.text)
    except JsonSchemaError as error:
        raise RequestError(f"sampling_params.{constraint.kind} {error}") from error


def _compile(compiler: Any, constraint: Constraint) -> Any:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA if constraint.text == _ANY_JSON:
            return compiler.compile_builtin_json_grammar()
        case ConstraintKind.JSON_SCHEMA:
            return compiler.compile_json_schema(constraint.text)
        case ConstraintKind.REGEX:
            return compiler.compile_regex(constraint.text)
        case ConstraintKind.EBNF:
            return compiler.compile_grammar(constraint.text)
        case ConstraintKind.STRUCTURAL_TAG:
            return compiler.compile_structural_tag(constraint.text)


def _reason(error: RuntimeError) -> str:
    """xgrammar's message without the place in its own source."""
    return str(error).strip().split(": ", 1)[-1]
