"""Deterministic mode: a request's tokens and log-probs, bit by bit, whatever else the engine has to do."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.engines.embedded import deterministic
from gpu_workers.engines.embedded.branches import BRANCH_TOKENS
from gpu_workers.engines.embedded.config import EngineConfigError
from gpu_workers.engines.embedded.engine import Engine, PauseMode
from gpu_workers.engines.embedded.grammars import GrammarMatcher
from gpu_workers.engines.embedded.lora import Adapter, AdapterError
from gpu_workers.engines.embedded.request import Request, SamplingParams
from tests.unit.gpu_workers.engines.asking import WAIT_SECONDS, prompt
from tests.unit.gpu_workers.engines.conftest import Start
from tests.unit.gpu_workers.engines.serving import make_adapter, make_engine, serving

Answer = tuple[list[int], list[float], list[float | None], str]
SHARED = prompt(20, seed=100)


@dataclass(frozen=True)
class Asked:
    """A request of the tests: `adapter` counts from 1, 0 is the base model."""

    ids: tuple[int, ...]
    params: SamplingParams
    adapter: int = 0
    scored: bool = False


def params_of(draw: random.Random) -> SamplingParams:
    temperature = draw.choice([0.0, 0.7, 1.0, 1.0])
    cut = draw.choice([{}, {"top_p": 0.9}, {"top_k": 7}, {"min_p": 0.02}])
    return SamplingParams(
        max_new_tokens=draw.choice([2, 3, 5, 8, 8, 8, BRANCH_TOKENS + 3]),
        temperature=temperature,
        sampling_seed=draw.randrange(2**40),
        **cut,
    )


def asked(draw: random.Random) -> Asked:
    """A prompt of its own, one that begins as others do, or one that others have too."""
    own = prompt(draw.choice([1, 7, 8, 20, 33]), seed=draw.randrange(1000))
    ids = draw.choice([own, [*SHARED, *own[:9]], SHARED])
    return Asked(tuple(ids), params_of(draw), draw.randrange(3), draw.random() < 0.2)


class World:
    """A deterministic engine with two adapters."""

    def __init__(self, engine: Engine, adapters: Sequence[Adapter]) -> None:
        self.engine, self.adapters = engine, adapters

    def submit(self, item: Asked) -> "Future[Request]":
        done: Future[Request] = Future()

        def changed(request: Request) -> None:
            if request.finish_reason is not None:
                done.set_result(request)

        self.engine.submit(
            Request(
                np.asarray(item.ids, np.int32),
                item.params,
                adapter=self.adapters[item.adapter - 1] if item.adapter else None,
                return_logprob=True,
                logprob_start=0 if item.scored else -1,
                changed=changed,
            )
        )
        return done

    def together(self, items: Sequence[Asked]) -> list[Answer]:
        gate = self.engine.call(lambda: [self.submit(item) for item in items])
        return [answer(future.result(WAIT_SECONDS)) for future in gate.result(WAIT_SECONDS)]

    def alone(self, item: Asked) -> Answer:
        """With an empty cache."""
        self.engine.call(self.engine.flush_cache).result(WAIT_SECONDS)
        return self.together([item])[0]


def answer(request: Request) -> Answer:
    assert request.finish_reason is not None
    return request.output_ids, request.output_logprobs, request.input_logprobs, request.finish_reason["type"]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    ranks = (4, 7)
    return [make_adapter(tmp_path_factory.mktemp("a"), seed=rank, rank=rank, std=0.4) for rank in ranks]


def world_of(engine: Engine, adapters: Sequence[Path]) -> World:
    return World(engine, [engine.read_adapter(f"a{n}", str(path)) for n, path in enumerate(adapters)])


@pytest.fixture
def world(start: Start, adapters: list[Path]) -> World:
    return world_of(start("--deterministic"), adapters)


@pytest.fixture(scope="module")
def small(endless_model: Path, adapters: list[Path]) -> Iterator[World]:
    """Three rows and little memory: requests wait, are retracted and lose their cached beginnings."""
    engine = make_engine(
        endless_model, "--deterministic", "--max-running", "3", "--prefill-tokens-per-step", "24",
        "--max-total-tokens", str(3 * BRANCH_TOKENS + 256),
    )  # fmt: skip
    engine.start()
    yield world_of(engine, adapters)
    engine.stop()
    assert engine.failure == ""


@pytest.mark.parametrize("seed", range(2))
def test_any_batch_gives_a_request_the_bits_that_it_has_alone(world: World, seed: int) -> None:
    draw = random.Random(seed)
    items = [asked(draw) for _ in range(8)]
    expected = [world.alone(item) for item in items]
    for size in (1, 3, 33):
        order = [draw.randrange(len(items)) for _ in range(size)]  # some twice: siblings of a group
        if draw.random() < 0.5:
            world.engine.call(world.engine.flush_cache).result(WAIT_SECONDS)  # else many beginnings are cached
        assert world.together([items[index] for index in order]) == [expected[index] for index in order]


@pytest.mark.parametrize("seed", range(2))
def test_waiting_retraction_and_computing_again_change_nothing(world: World, small: World, seed: int) -> None:
    draw = random.Random(100 + seed)
    items = [asked(draw) for _ in range(6)]
    expected = [world.alone(item) for item in items]
    before = small.engine.metrics.prompt._value.get()
    assert small.together(items) == expected
    assert small.engine.metrics.prompt._value.get() > before


def test_a_pause_that_retracts_changes_nothing(world: World) -> None:
    draw = random.Random(7)
    long = SamplingParams(max_new_tokens=BRANCH_TOKENS + 6, sampling_seed=1)
    items = [Asked(tuple(prompt(20, seed=s)), long, s, scored=True) for s in range(3)] + [asked(draw) for _ in range(2)]
    expected = [world.alone(item) for item in items]
    engine = world.engine

    def retract() -> None:
        engine.pause(PauseMode.RETRACT)
        engine.flush_cache()
        engine.resume()

    futures = engine.call(lambda: [world.submit(item) for item in items]).result(WAIT_SECONDS)
    generated = engine.metrics.generated._value
    for _ in range(4):
        reached = generated.get() + 6
        while generated.get() < reached and not all(future.done() for future in futures):
            engine.call(lambda: None).result(WAIT_SECONDS)  # a step or none
        engine.call(retract).result(WAIT_SECONDS)
    assert [answer(future.result(WAIT_SECONDS)) for future in futures] == expected
    assert max(future.result().num_retractions for future in futures) >= 2


def test_constrained_requests_too(start: Start, adapters: list[Path], tmp_path: Path) -> None:
    from gpu_workers.models import tiny

    engine = make_engine(tiny.prepare(tmp_path), "--deterministic")
    engine.start()
    try:
        held = Constraint(ConstraintKind.REGEX, "([a-z]{2} ){12}end")
        compiled = engine.grammars._ask(held).result(WAIT_SECONDS)
        plain = World(engine, [])

        def constrained(seed: int) -> "Future[Request]":
            future: Future[Request] = Future()
            params = SamplingParams(max_new_tokens=60, sampling_seed=seed, constraint=held)
            request = Request(np.asarray(SHARED, np.int32), params, return_logprob=True)
            request.matcher = GrammarMatcher(compiled, engine.config.vocab_size)
            request.changed = lambda r: future.set_result(r) if r.finish_reason else None
            engine.submit(request)
            return future

        alone = [answer(constrained(seed).result(WAIT_SECONDS)) for seed in range(3)]
        draw = random.Random(3)
        others = [Asked(tuple(prompt(20, seed=s)), params_of(draw)) for s in range(9)]
        gate = engine.call(lambda: ([constrained(s) for s in range(3)], [plain.submit(item) for item in others]))
        futures, rest = gate.result(WAIT_SECONDS)
        assert [answer(future.result(WAIT_SECONDS)) for future in futures] == alone
        for future in rest:
            future.result(WAIT_SECONDS)
        assert engine.text.output(futures[0].result()).endswith(" end")
    finally:
        engine.stop()


def test_rows_of_one_are_the_same_model(start: Start, world: World) -> None:
    """The slow way for machines whose products depend on the place of a row."""
    one = World(start("--deterministic", "--deterministic-rows", "1"), [])
    items = [Asked(tuple(prompt(30, seed=s)), SamplingParams(max_new_tokens=6, temperature=0)) for s in range(4)]
    alone = [one.alone(item) for item in items]
    assert one.together(items) == alone
    for mine, other in zip(alone, [world.alone(item) for item in items], strict=True):
        assert mine[0] == other[0]
        assert mine[1] == pytest.approx(other[1], abs=1e-4)


def test_it_is_the_same_model_as_without(start: Start, world: World, adapters: list[Path]) -> None:
    free = world_of(start("--dtype", "float32"), adapters)
    draw = random.Random(5)
    for _ in range(6):
        ids, adapter = tuple(prompt(draw.randrange(2, 120), seed=draw.randrange(99))), draw.randrange(3)
        item = Asked(ids, SamplingParams(max_new_tokens=4, temperature=0), adapter, scored=True)
        mine, other = world.alone(item), free.alone(item)
        assert mine[1] == pytest.approx(other[1], abs=2e-4)
        assert mine[2] == pytest.approx(other[2], abs=2e-4)


async def test_requests_without_a_seed_have_sglangs(endless_model: Path) -> None:
    with serving(endless_model, "--enable-deterministic-inference") as (url, _):
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def ids(**params: Any) -> Any:
                body = {"input_ids": SHARED, "sampling_params": {"max_new_tokens": 12, **params}}
                found = (await client.post("/generate", json=body)).json()
                return [one["output_ids"] for one in found] if isinstance(found, list) else found["output_ids"]

            first = await ids()
            assert await ids() == first == await ids(sampling_seed=deterministic.DEFAULT_SEED)
            samples = await ids(n=3)
            assert samples[0] == first
            assert len({tuple(sample) for sample in samples}) == 3
            assert (await client.get("/server_info")).json()["enable_deterministic_inference"] is True


def test_a_machine_that_mixes_rows_is_refused(
    endless_model: Path, adapters: list[Path], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.nn.functional.linear

    def by_place(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = real(x, weight)
        out[-1] *= 1 + 1e-6  # as where the last row of a block is summed in another order
        return out

    monkeypatch.setattr(torch.nn.functional, "linear", by_place)
    with pytest.raises(EngineConfigError, match="--deterministic-rows 1"):
        make_engine(endless_model, "--deterministic")
    with pytest.raises(AdapterError, match="rank 4 cannot be served"):
        world.engine.read_adapter("other", str(adapters[0]))


def test_wrong_options_are_refused(endless_model: Path) -> None:
    with pytest.raises(EngineConfigError, match="float32"):
        make_engine(endless_model, "--deterministic", "--dtype", "bfloat16")
    with pytest.raises(EngineConfigError, match="at least 1"):
        make_engine(endless_model, "--deterministic", "--deterministic-rows", "0")
