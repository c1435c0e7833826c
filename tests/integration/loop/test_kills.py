"""kill -9 of the trainer, the rollout worker and the engine in mid-run: nothing lost, nothing trained twice."""

import os
import signal

import psutil
import pytest

from tests.integration.loop.test_whole_loop import FINAL
from tests.integration.loop.world import Person, spec
from tests.integration.services.machine import Machine

pytestmark = pytest.mark.slow
STEPS = 10


def _kill(machine: Machine, words: str) -> None:
    """kill -9 the one process of this machine whose command holds `words`."""
    found = [
        process.pid
        for process in psutil.process_iter(["cmdline", "environ"])
        if words in " ".join(process.info["cmdline"] or [])
        and (process.info["environ"] or {}).get("RATCHET_HOME") == str(machine.root)
    ]
    assert found, f"no process with {words!r}"
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def test_a_run_survives_kills_of_its_trainer_its_rollout_worker_and_its_engine(
    machine: Machine, people: dict[str, Person]
) -> None:
    engineer = people["engineer"]
    rollout = {**spec()["rollout"], "group_timeout_seconds": 15}
    body = spec(name="kills", steps=STEPS, rollout=rollout, evaluation={"dev_tasks": 0})
    run = engineer.post("runs/", {"project": "demo", "spec": body}, 202)
    path = f"runs/{run['id']}/"
    engineer.wait(path, lambda r: r["step"] >= 2 or r["state"] in FINAL)
    _kill(machine, "gpu_workers.trainer")
    engineer.wait(path, lambda r: r["step"] >= 5 or r["state"] in FINAL, 90)
    _kill(machine, "-n rollout@")
    engineer.wait(path, lambda r: r["step"] >= 7 or r["state"] in FINAL, 90)
    _kill(machine, "gpu_workers.engines.embedded")  # comes back without any adapter
    run = engineer.wait(path, lambda r: r["state"] in FINAL, 120)
    assert run["state"] == "succeeded", run
    assert len(run["attempts"]) == 2

    ledger = engineer.get(f"runs/{run['id']}/ledger/")
    assert ledger["adds_up"], ledger
    checkpoints = sorted(engineer.get(f"runs/{run['id']}/checkpoints/")["results"], key=lambda c: c["version"])
    assert [c["version"] for c in checkpoints] == list(range(1, STEPS + 1))
    trained = _trained_batches(engineer, run["id"])
    for checkpoint in checkpoints:
        assert checkpoint["batch_ids"] == trained[: checkpoint["version"]]
    groups = [g for b in _batches(engineer, run["id"]).values() for g in b]
    assert len(groups) == len(set(groups)) == STEPS * rollout["prompts_per_batch"]


def _batches(someone: Person, run_id: str) -> dict[str, list[str]]:
    """Groups of each trained batch as the database has them, in order of the batches."""
    rows: list[tuple[int, str, str]] = []
    page = someone.get(f"runs/{run_id}/groups/", outcome="trained", page_size=200)
    while True:
        rows += [(g["step"], g["batch"], g["id"]) for g in page["results"]]
        if not page["next"]:
            break
        page = someone.get(page["next"])
    batches: dict[str, list[str]] = {}
    for _, batch, group in sorted(rows):
        batches.setdefault(batch, []).append(group)
    return batches


def _trained_batches(someone: Person, run_id: str) -> list[str]:
    return list(_batches(someone, run_id))
