"""A run that trains every weight, on every real process: versions by disk-delta, its evaluation, refusals."""

import asyncio
from typing import Any

import pytest

from gpu_workers.contracts.seams import EngineInfo
from gpu_workers.engines.sglang import SGLangEngine
from tests.integration.loop.test_whole_loop import FINAL, _episodes
from tests.integration.loop.world import Person, spec
from tests.integration.services.machine import Machine

pytestmark = pytest.mark.slow
STEPS = 3


def look(machine: Machine, variable: str) -> tuple[EngineInfo, str]:
    """What an engine of the machine says it serves, and the digest of its weights in memory."""

    async def ask() -> tuple[EngineInfo, str]:
        engine = SGLangEngine(f"http://127.0.0.1:{machine.variables[variable]}")
        try:
            return await engine.info(), await engine.weights_digest()
        finally:
            await engine.close()

    return asyncio.run(ask())


def full_spec(**changes: Any) -> dict[str, Any]:
    rollout = {"prompts_per_batch": 2, "group_size": 4, "max_staleness": 1, "max_new_tokens": 12}
    return spec(
        name="every weight", steps=STEPS, rollout=rollout, trainer={"update": "full", "transfer": "delta"},
        evaluation={"dev_tasks": 3}, optimiser={"learning_rate": 1e-3, "warmup_steps": 1}, **changes,
    )  # fmt: skip


def test_a_full_run_trains_is_evaluated_and_takes_turns(machine: Machine, people: dict[str, Person]) -> None:
    engineer, manager = people["engineer"], people["manager"]
    _, shared = look(machine, "RATCHET_ENGINE_PORT")
    _, at_first = look(machine, "RATCHET_FULL_ENGINE_PORT")
    run = engineer.post("runs/", {"project": "demo", "spec": full_spec()}, 202)
    after = engineer.post("runs/", {"project": "demo", "spec": full_spec()}, 202)
    waiting = engineer.wait(
        f"runs/{after['id']}/", lambda r: r["status_code"] == "waiting_for_fleet" or r["state"] in FINAL
    )
    assert f"run {run['number']} holds it" in waiting["status_message"] and waiting["fleet_lease"]["granted_at"] is None
    engineer.post(f"runs/{after['id']}/cancel/", {})
    run = engineer.wait(f"runs/{run['id']}/", lambda r: r["state"] in FINAL, 240)
    assert run["state"] == "succeeded", run
    assert run["fleet_lease"]["released_at"] is not None

    episodes = _episodes(engineer, run["id"])
    versions = {version for e in episodes if e["group"] for version in (e["min_version"], e["max_version"])}
    assert versions >= {0, 1} and max(versions) <= STEPS
    assert engineer.get(f"runs/{run['id']}/ledger/")["adds_up"]
    events = engineer.get(f"runs/{run['id']}/events/")["results"]
    installed = [event for event in events if event["code"] == "installed"]
    assert {e["data"]["version"] for e in installed} >= {0, 1} and all("by delta" in e["message"] for e in installed)

    checkpoints = engineer.get(f"runs/{run['id']}/checkpoints/")["results"]
    last = max(checkpoints, key=lambda c: c["version"])
    assert last["version"] == STEPS and last["dev_n"] == 3 and last["adapter"].endswith("/model")
    info, trained = look(machine, "RATCHET_FULL_ENGINE_PORT")
    assert info.weight_version == last["adapter_name"] == f"run-{run['id']}.a{last['attempt']}@v{STEPS}"
    assert trained != at_first
    assert look(machine, "RATCHET_ENGINE_PORT")[1] == shared  # the engines that adapters share kept their weights
    assert (machine.root / "objects" / last["adapter"] / "model.safetensors").is_file()  # whole: anything can serve it

    policies = ["prompted", run["result"]]
    measured = engineer.post(
        "evaluations/", {"project": "demo", "suite": "digits", "split": "dev", "policies": policies}, 202
    )
    measured = engineer.wait(f"evaluations/{measured['id']}/", lambda e: e["state"] in ("finished", "failed"), 120)
    assert measured["state"] == "finished", measured
    assert look(machine, "RATCHET_FULL_ENGINE_PORT")[1] == trained  # the policy's weights are those of the checkpoint
    refused = manager.client.post("channels/", json={"project": "demo", "name": "heavy", "policy": run["result"]})
    assert refused.status_code == 409 and "train an adapter" in refused.json()["detail"]
    adapter = engineer.client.post("runs/", json={"project": "demo", "spec": spec(policy=run["result"], steps=1)})
    assert adapter.status_code == 422 and "trainer.update to full" in adapter.json()["errors"][0]["message"]
