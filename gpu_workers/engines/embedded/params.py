"""Reads the JSON of /generate into requests. Everything wrong is a RequestError that names the field."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.engines.embedded.deterministic import DEFAULT_SEED
from gpu_workers.engines.embedded.engine import Engine
from gpu_workers.engines.embedded.grammars import Compiled, GrammarMatcher, constraint_of
from gpu_workers.engines.embedded.lora import Adapter
from gpu_workers.engines.embedded.request import Request, RequestError, SamplingParams

# Accepted only at the value that changes nothing: this engine does not implement them.
_NEUTRAL = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    **dict.fromkeys(("logit_bias", "custom_params", "stop_regex")),
}
GREEDY_BELOW = 1e-6  # temperatures that SGLang takes for 0
_CONSTRAINTS = frozenset(ConstraintKind)
_IGNORED = frozenset({"spaces_between_special_tokens", "stream_interval"})


class _Sampling(msgspec.Struct, kw_only=True):
    """sampling_params as sent. Unknown names are refused before."""

    max_new_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    min_new_tokens: int = 0
    n: int = 1
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False


class GenerateBody(msgspec.Struct, kw_only=True):
    """The body of /generate, the part this engine supports; other fields of SGLang's are ignored."""

    input_ids: list[int | list[int]] | None = None  # one prompt, or a list of prompts
    text: str | list[str] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | list[int] = -1
    top_logprobs_num: int | list[int] = 0
    rid: str | list[str] | None = None
    lora_path: str | list[str | None] | None = None
    stream: bool = False

    def adapter_names(self) -> set[str]:
        named = self.lora_path if isinstance(self.lora_path, list) else [self.lora_path]
        return {name for name in named if name}

    def constraints(self) -> set[Constraint]:
        """Raises RequestError."""
        given = self.sampling_params or {}
        found = (constraint_of(params) for params in (given if isinstance(given, list) else [given]))
        return {constraint for constraint in found if constraint is not None}


def parse_sampling(raw: dict[str, Any]) -> SamplingParams:
    """Validate one sampling_params object."""
    constraint = constraint_of(raw)
    raw = {name: value for name, value in raw.items() if name not in _CONSTRAINTS}
    for name, neutral in _NEUTRAL.items():
        if raw.pop(name, neutral) not in (neutral, None):
            raise RequestError(f"sampling_params.{name} is not supported by the embedded engine")
    for name in [key for key in raw if key not in _Sampling.__struct_fields__ and key not in _IGNORED]:
        raise RequestError(f"sampling_params.{name} is not a known parameter")
    try:
        p = msgspec.convert(raw, _Sampling)
    except msgspec.ValidationError as error:
        raise RequestError(f"sampling_params: {error}") from error
    _require(p.max_new_tokens is None or p.max_new_tokens >= 0, "max_new_tokens must be at least 0", p.max_new_tokens)
    _require(p.temperature >= 0, "temperature must be non-negative", p.temperature)
    _require(0 < p.top_p <= 1, "top_p must be in (0, 1]", p.top_p)
    _require(p.top_k == -1 or p.top_k >= 1, "top_k must be -1 (disable) or at least 1", p.top_k)
    _require(0 <= p.min_p <= 1, "min_p must be in [0, 1]", p.min_p)
    _require(1 <= p.n <= 256, "n must be between 1 and 256", p.n)
    stop = [p.stop] if isinstance(p.stop, str) else p.stop or []
    return SamplingParams(
        max_new_tokens=128 if p.max_new_tokens is None else p.max_new_tokens,
        temperature=p.temperature if p.temperature >= GREEDY_BELOW else 0.0,
        top_p=p.top_p,
        top_k=p.top_k,
        min_p=p.min_p,
        stop=tuple(text for text in stop if text),
        stop_token_ids=frozenset(p.stop_token_ids or ()),
        ignore_eos=p.ignore_eos,
        min_new_tokens=p.min_new_tokens,
        n=p.n,
        sampling_seed=p.sampling_seed,
        skip_special_tokens=p.skip_special_tokens,
        no_stop_trim=p.no_stop_trim,
        constraint=constraint,
    )


def _require(condition: bool, message: str, value: Any) -> None:
    if not condition:
        raise RequestError(f"sampling_params: {message}, got {value}")


def read_generate(raw: bytes) -> GenerateBody:
    """Raises RequestError."""
    try:
        return msgspec.json.decode(raw, type=GenerateBody)
    except msgspec.DecodeError as error:
        raise RequestError(f"body: {error}") from error


def make_requests(
    body: GenerateBody, engine: Engine, grammars: Mapping[Constraint, Compiled]
) -> tuple[list[Request], bool]:
    """Requests of one body, n samples expanded, and whether it asked for a list. Raises RequestError."""
    prompts, is_batch = _prompts(body, engine)
    count = len(prompts)
    samplings = _spread(body.sampling_params or {}, count, "sampling_params")
    adapters = _spread(body.lora_path, count, "lora_path")
    logprobs = _spread(body.return_logprob, count, "return_logprob")
    starts = _spread(body.logprob_start_len, count, "logprob_start_len")
    rids = _rids(body.rid, count, is_batch)
    if any(_spread(body.top_logprobs_num, count, "top_logprobs_num")):
        raise RequestError("top_logprobs_num is not supported by the embedded engine")
    requests = []
    for prompt, sampling, adapter, wants, start, rid in zip(
        prompts, samplings, adapters, logprobs, starts, rids, strict=True
    ):
        params = parse_sampling(sampling)
        if engine.model.block_rows and params.sampling_seed is None:
            params = replace(params, sampling_seed=DEFAULT_SEED)
        for sample in range(params.n):
            request = Request(
                input_ids=np.asarray(prompt, np.int32),
                params=params if sample == 0 else _reseeded(params, sample),
                rid=rid if params.n == 1 else f"{rid}_{sample}",
                call_rid=body.rid if isinstance(body.rid, str) else rid,
                adapter=find_adapter(engine, adapter),
                return_logprob=wants,
                logprob_start=start if wants and start >= 0 else -1,
                stream=body.stream,
            )
            if params.constraint is not None:
                request.matcher = GrammarMatcher(grammars[params.constraint], engine.config.vocab_size)
            check_fits(request, engine)
            requests.append(request)
    return requests, is_batch or len(requests) > 1


def _prompts(body: GenerateBody, engine: Engine) -> tuple[list[list[int]], bool]:
    if (body.input_ids is None) == (body.text is None):
        raise RequestError("give exactly one of input_ids and text")
    if body.text is not None:
        texts = [body.text] if isinstance(body.text, str) else body.text
        prompts, is_batch = [engine.text.encode(text) for text in texts], not isinstance(body.text, str)
    else:
        prompts, is_batch = _split_prompts(body.input_ids or [])
    if not prompts or not all(prompts):
        raise RequestError("input_ids is empty; give at least one token")
    for prompt in prompts:
        for token in (min(prompt), max(prompt)):
            if not 0 <= token < engine.config.vocab_size:
                raise RequestError(
                    f"input_ids: token id {token} is outside the vocabulary of {engine.config.vocab_size}"
                )
    return prompts, is_batch


def _split_prompts(ids: list[int | list[int]]) -> tuple[list[list[int]], bool]:
    """One prompt of ids, or several; never a mixture."""
    prompts = [item for item in ids if isinstance(item, list)]
    if prompts and len(prompts) != len(ids):
        raise RequestError("input_ids mixes token ids and lists of them; give one prompt or a list of prompts")
    return (prompts, True) if prompts else ([[item for item in ids if isinstance(item, int)]], False)


def _rids(rid: str | list[str] | None, count: int, is_batch: bool) -> list[str]:
    if isinstance(rid, str):
        return [rid] if not is_batch else [f"{rid}_{index}" for index in range(count)]
    return _spread(rid, count, "rid") if rid else [uuid.uuid4().hex for _ in range(count)]


def _spread(value: Any, count: int, name: str) -> list[Any]:
    """One value a prompt."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries, input_ids {count}")
    return value


def _reseeded(params: SamplingParams, sample: int) -> SamplingParams:
    """Samples of one call differ although they share the call's seed."""
    return params if params.sampling_seed is None else replace(params, sampling_seed=params.sampling_seed + sample)


def find_adapter(engine: Engine, name: str | None) -> Adapter | None:
    """The loaded adapter called `name`; None and "" mean the base model."""
    if not name:
        return None
    adapter = engine.adapters.get(name)
    if adapter is None or adapter.retiring:
        loaded = ", ".join(sorted(n for n, a in engine.adapters.items() if not a.retiring)) or "none"
        raise RequestError(f"adapter {name!r} is not loaded (loaded: {loaded}); load it with /load_lora_adapter")
    adapter.touch()
    return adapter


def check_fits(request: Request, engine: Engine) -> None:
    """Refuse what could never finish: context length, memory of the engine."""
    num_input, num_new, context = len(request.input_ids), request.params.max_new_tokens, engine.config.context_length
    if num_input >= context:
        raise RequestError(
            f"The input ({num_input} tokens) is longer than the model's context length ({context} tokens)."
        )
    if num_input + num_new > context:
        raise RequestError(
            f"Requested token count exceeds the model's maximum context length of {context} tokens: "
            f"{num_input} in the input and {num_new} new; shorten the input or lower max_new_tokens."
        )
    capacity = engine.limits.cache_tokens
    if num_input + num_new > capacity:
        raise RequestError(
            f"{num_input} input and {num_new} new tokens do not fit into the engine's {capacity} cache tokens; "
            f"start it with a larger --max-total-tokens"
        )
    if request.logprob_start >= num_input:
        raise RequestError(f"logprob_start_len {request.logprob_start} is not below the input's {num_input} tokens")
