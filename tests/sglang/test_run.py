"""A whole asynchronous RL run on every real process, sampled by a real SGLang."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_workers.models import smollm2 as base_model
from tests.integration.loop import world
from tests.integration.services.machine import Machine, free_port, wait_for

pytestmark = pytest.mark.slow
FINAL = ("succeeded", "failed", "halted", "cancelled")
STEPS = 3
TASKS = {"train": 6, "dev": 2, "heldout": 4, "regression": 2}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, smollm2: Path, sglang_url: str) -> Iterator[Machine]:
    root: Path = tmp_path_factory.mktemp("run")
    (root / "models").mkdir()
    (root / "models" / base_model.NAME).symlink_to(smollm2)
    ports = {name: str(free_port()) for name in ("RATCHET_PORT", "RATCHET_GATEWAY_PORT")}
    variables = {"ROLLOUT_ENGINE_URLS": sglang_url, "RATCHET_ENGINE_MODEL": "smollm2", "TORCH_THREADS": "1", **ports}
    machine = Machine(root, variables=variables)
    machine.up("--without", "gateway")
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def engineer(machine: Machine) -> Iterator[world.Person]:
    people = world.people(machine, base_model.NAME)
    world.prepare(people["engineer"], people["manager"], base_model=base_model.NAME, rows=world.tasks(TASKS))
    yield people["engineer"]
    for person in people.values():
        person.client.close()


def spec() -> dict[str, Any]:
    """Float32 like the server, so that the mismatch of their log-probs is rounding and nothing else."""
    return {
        "name": "through SGLang",
        "suite": "digits",
        "policy": "prompted",
        "steps": STEPS,
        "rollout": {"prompts_per_batch": 2, "group_size": 4, "max_staleness": 1, "max_new_tokens": 16},
        "lora": {"rank": 8, "alpha": 16.0},
        "optimiser": {"learning_rate": 1e-3, "warmup_steps": 0},
        "trainer": {"compute_dtype": "float32"},
        "evaluation": {"dev_tasks": 0},
    }


def test_an_asynchronous_run_is_sampled_by_sglang(machine: Machine, engineer: world.Person, sglang_url: str) -> None:
    submitted = engineer.post("runs/", {"project": "demo", "spec": spec()}, 202)
    run = engineer.wait(f"runs/{submitted['id']}/", lambda r: r["state"] in FINAL, 900)
    assert run["state"] == "succeeded", run
    assert engineer.get(f"runs/{run['id']}/ledger/")["adds_up"]

    name = f"run-{run['id']}.a1@v"
    with machine.connect() as database:
        installs = database.execute(
            "SELECT version, engines FROM runs_fleetinstall WHERE run_id = %s AND state = 'confirmed'", [run["id"]]
        ).fetchall()
        groups = database.execute(
            "SELECT policy_version, policy_adapter, age FROM runs_group WHERE run_id = %s AND age IS NOT NULL",
            [run["id"]],
        ).fetchall()
    assert {version for version, _ in installs} >= {0, 1}
    assert all(engines == [sglang_url] for _, engines in installs)
    versions = {version for version, _, _ in groups}
    assert {0, 1} <= versions, "batches were sampled from the base and from an adapter that a step made"
    assert all(adapter == (f"{name}{version}" if version else "") for version, adapter, _ in groups)

    points = engineer.get(f"runs/{run['id']}/metrics/")
    mismatch = _series(points, "train/logprob_mismatch_max")
    assert len(mismatch) == STEPS
    assert mismatch[0] < 2e-3, "the first batch is on-policy: only rounding lies between the engine and the trainer"
    ages = [age for _, _, age in groups]
    print(f"largest log-prob mismatch by step: {mismatch}; ages of the groups trained on: {sorted(ages)}")
    assert max(ages) == 1, "one batch at least was sampled while its predecessor was trained on"

    def adapters() -> set[str]:
        listed = httpx.get(f"{sglang_url}/v1/models", timeout=30).json()["data"]
        return {row["id"] for row in listed if row["parent"] and row["id"].startswith(f"run-{run['id']}")}

    assert wait_for(lambda: not adapters(), 120), "what the run loaded is unloaded when it is over"


def _series(points: Any, name: str) -> list[float]:
    found = next(item for item in points if item["name"] == name)
    return [float(value) for value in found["values"]]
