"""Continuous batching: sharing, memory bounds, joining and leaving, stress."""

import random

import numpy as np

from gpu_workers.engines.embedded.branches import BRANCH_TOKENS
from gpu_workers.engines.embedded.engine import Engine, PauseMode
from gpu_workers.engines.embedded.request import State
from tests.unit.gpu_workers.engines.asking import ask, ask_all, prompt, submit
from tests.unit.gpu_workers.engines.conftest import Start


def prompt_tokens_computed(engine: Engine) -> float:
    return engine.metrics.prompt._value.get()


def settled(engine: Engine) -> tuple[int, int, int]:
    """(locked tokens, running, waiting) once the thread is between steps."""
    tree = engine.scheduler.memory.tree
    return engine.call(lambda: (tree.num_locked_tokens, engine.num_running, engine.num_waiting)).result(10)


def test_a_group_computes_its_prompt_once(start: Start) -> None:
    engine = start()
    requests = ask_all(engine, [prompt(90)] * 8, max_new_tokens=10)
    assert prompt_tokens_computed(engine) == 90
    assert len({tuple(r.output_ids) for r in requests}) == 8
    assert [r.num_cached_tokens for r in requests] == [0, *[90] * 7]


def test_a_late_sibling_computes_nothing(start: Start) -> None:
    engine = start()
    ask(engine, prompt(90))
    assert ask(engine, prompt(90)).num_cached_tokens == 90
    assert prompt_tokens_computed(engine) == 90


def test_a_shared_beginning_is_computed_once(start: Start) -> None:
    engine, shots = start(), prompt(64, seed=1)
    ask_all(engine, [[*shots, *prompt(10, seed=s)] for s in range(2, 8)])
    assert prompt_tokens_computed(engine) == 64 + 6 * 10


def test_adapters_and_weights_do_not_share(start: Start, tmp_path_factory) -> None:
    from tests.unit.gpu_workers.engines.serving import make_adapter

    engine = start()
    adapter = engine.read_adapter("a", str(make_adapter(tmp_path_factory.mktemp("a"))))
    ask(engine, prompt(40))
    assert ask(engine, prompt(40), adapter=adapter).num_cached_tokens == 0


def test_more_than_fits_queues_and_ends(start: Start) -> None:
    rows, cache = 4, 256
    engine = start("--max-running", str(rows), "--max-total-tokens", str(rows * BRANCH_TOKENS + cache))
    seen = []
    engine.scheduler.metrics.observe_load = lambda **load: seen.append((load["num_running"], load["num_used"]))
    requests = ask_all(engine, [prompt(70, seed=s) for s in range(12)], max_new_tokens=90)
    assert [len(r.output_ids) for r in requests] == [90] * 12
    assert max(running for running, _ in seen) <= rows
    assert max(used for _, used in seen) <= cache
    assert settled(engine) == (0, 0, 0)


def test_memory_shortage_retracts_and_repeats_nothing(start: Start) -> None:
    """Every request may grow to the whole memory: some are retracted, and their answers are those of an idle engine."""
    options = ("--max-running", "4", "--max-total-tokens", str(4 * BRANCH_TOKENS + 320))
    prompts = [prompt(20, seed=s) for s in range(6)]
    crowded = ask_all(start(*options), prompts, max_new_tokens=250, sampling_seed=3)
    alone = start()
    assert sum(r.num_retractions for r in crowded) > 0
    for request, ids in zip(crowded, prompts, strict=True):
        assert request.output_ids == ask(alone, ids, max_new_tokens=250, sampling_seed=3).output_ids


def test_the_cache_is_evicted_not_grown(start: Start) -> None:
    engine = start("--max-running", "4", "--max-total-tokens", str(4 * BRANCH_TOKENS + 256))
    for seed in range(10):
        ask(engine, prompt(100, seed=seed))
    assert engine.scheduler.memory.tree.num_tokens <= 256
    assert ask(engine, prompt(100, seed=9)).num_cached_tokens == 100


def test_seeds_decide_whatever_runs_beside(start: Start) -> None:
    engine = start()
    alone = ask(engine, prompt(30), sampling_seed=7, max_new_tokens=40).output_ids
    crowd = [submit(engine, prompt(20, seed=s), max_new_tokens=60) for s in range(10)]
    assert ask(engine, prompt(30), sampling_seed=7, max_new_tokens=40).output_ids == alone
    assert [len(f.result(60).output_ids) for f in crowd] == [60] * 10


def test_stress_with_aborts_and_pauses_leaves_nothing_behind(start: Start) -> None:
    engine = start("--max-running", "8", "--max-total-tokens", str(8 * BRANCH_TOKENS + 700))
    rng = random.Random(0)
    futures = []
    for number in range(120):
        ids = [*prompt(rng.choice((5, 40)), seed=rng.randrange(3)), *prompt(rng.randrange(1, 30), seed=number)]
        futures.append(submit(engine, ids, rid=f"r{number}", max_new_tokens=rng.randrange(1, 120)))
        if number % 10 == 5:
            victim = f"r{rng.randrange(number)}"
            engine.call(lambda victim=victim: engine.abort(victim, False)).result(30)
        if number % 40 == 20:
            engine.call(lambda: engine.pause(PauseMode.RETRACT)).result(30)
            engine.call(engine.flush_cache).result(30)
            engine.call(engine.resume).result(30)
    requests = [future.result(120) for future in futures]
    assert all(r.state is State.FINISHED for r in requests)
    kinds = {r.finish_reason["type"] for r in requests}
    assert kinds <= {"length", "abort"}
    for request in requests:
        if request.finish_reason["type"] == "length":
            assert len(request.output_ids) == request.params.max_new_tokens
        assert np.isfinite(request.output_logprobs).all()
    assert settled(engine) == (0, 0, 0)
